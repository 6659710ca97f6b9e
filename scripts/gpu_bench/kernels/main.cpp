// Exactness and speed of the GPU kernels for few rows, without a model.
//
//   lucebox-gpu-kernels check   [--device NAME] [--only TEXT]
//   lucebox-gpu-kernels measure [--device NAME] [--only TEXT] [--rows 9,16,32] [--rounds N] [--case-seconds S] [--output FILE]
//
// `check` ends with 1 if a promise is broken, and with 2 if it could not be called so.

#include "check.h"
#include "measure.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace {

using namespace gpu_kernels;

struct Arguments {
    std::string device = "CUDA0";
    std::string only;
    std::string output;
    MeasureOptions options;
};

std::vector<int64_t> numbers(const std::string & text) {
    std::vector<int64_t> values;
    size_t start = 0;
    while (start < text.size()) {
        size_t used = 0;
        values.push_back(std::stoll(text.substr(start), &used));
        if (values.back() < 1) {
            throw std::invalid_argument("rows count from one");
        }
        start += used + 1;
    }
    return values;
}

Arguments parse(int argc, char ** argv) {
    Arguments arguments;
    for (int i = 2; i < argc; i += 2) {
        const std::string name = argv[i];
        if (i + 1 == argc) {
            throw std::invalid_argument(name + " needs a value");
        }
        const std::string value = argv[i + 1];
        if (name == "--device") {
            arguments.device = value;
        } else if (name == "--only") {
            arguments.only = value;
        } else if (name == "--output") {
            arguments.output = value;
        } else if (name == "--rows") {
            arguments.options.rows = numbers(value);
        } else if (name == "--rounds") {
            arguments.options.n_rounds = std::max(5, std::stoi(value));
        } else if (name == "--case-seconds") {
            arguments.options.case_limit_s = std::stod(value);
        } else {
            throw std::invalid_argument("unknown argument " + name);
        }
    }
    return arguments;
}

std::vector<Case> cases_named(const std::string & text) {
    std::vector<Case> cases;
    for (Case & one : all_cases()) {
        if (one.name.find(text) != std::string::npos) {
            cases.push_back(std::move(one));
        }
    }
    if (cases.empty()) {
        throw std::invalid_argument("no case has '" + text + "' in its name");
    }
    return cases;
}

int run_command(const std::string & command, const Arguments & arguments) {
    const std::vector<Case> cases = cases_named(arguments.only);
    const Device device(arguments.device);
    if (!device.has_switches()) {
        fprintf(stderr, "%s has no switches of ours: nothing but its own dispatch is tried\n", arguments.device.c_str());
    }
    if (command == "check") {
        return check(device, cases) > 0;
    }
    FILE * out = arguments.output.empty() ? stdout : fopen(arguments.output.c_str(), "w");
    if (out == nullptr) {
        throw std::invalid_argument(arguments.output + ": " + strerror(errno));
    }
    measure(device, cases, arguments.options, out);
    if (out != stdout) {
        fclose(out);
    }
    return 0;
}

} // namespace

int main(int argc, char ** argv) {
    const std::string command = argc > 1 ? argv[1] : "";
    if (command != "check" && command != "measure") {
        fprintf(stderr, "usage: %s check|measure [--device NAME] [--only TEXT] ...\n", argv[0]);
        return 2;
    }
    ggml_backend_load_all();
    try {
        return run_command(command, parse(argc, argv));
    } catch (const std::logic_error & problem) {
        fprintf(stderr, "%s: %s\n", argv[0], problem.what());
    } catch (const std::runtime_error & problem) {
        fprintf(stderr, "%s: %s\n", argv[0], problem.what());
    }
    return 2;
}
