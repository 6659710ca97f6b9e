#include "check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <stdexcept>

namespace gpu_kernels {

namespace {

// Upstream's kernels, with F32 weights on the vector kernel: what a window runs that the whole was cut into.
Environment for_windows(const Case & one) {
    Environment environment = one.off;
    if (one.name.find("f32") != std::string::npos) {
        environment = { { "GGML_CUDA_BATCH_INVARIANT", "1" }, { "STRIX_F32_VEC_CHUNK_MAX", "0" } };
    }
    return environment;
}

// The back end captures a graph that comes again: computed so often, what is read at the end is of a replay.
constexpr int UNTIL_REPLAYED = 4;

Bytes run(const Device & device, const Case & one, const CaseData & data, const Weights & weights, int64_t first, int64_t n,
          int n_times = 1) {
    const Graph graph(device, one, data, weights, first, n);
    for (int i = 0; i < n_times; ++i) {
        graph.compute();
    }
    return graph.output();
}

// what stands at a row of one output and not of the other, "" if nothing
std::string first_difference(const Bytes & whole, const Bytes & parts, int64_t n_rows) {
    if (whole.size() != parts.size()) {
        return "the sizes differ";
    }
    const size_t of_row = whole.size()/n_rows;
    int64_t differing = 0;
    std::string first;
    for (int64_t row = 0; row < n_rows; ++row) {
        const uint8_t * a = whole.data() + row*of_row;
        const uint8_t * b = parts.data() + row*of_row;
        if (memcmp(a, b, of_row) == 0) {
            continue;
        }
        if (differing++ == 0) {
            size_t i = 0;
            while (memcmp(a + i, b + i, 4) == 0) {
                i += 4;
            }
            float x;
            float y;
            memcpy(&x, a + i, 4);
            memcpy(&y, b + i, 4);
            char text[120];
            snprintf(text, sizeof(text), "row %d value %zu: %.9g and %.9g", (int) row, i/4, (double) x, (double) y);
            first = text;
        }
    }
    return differing == 0 ? "" : std::to_string(differing) + " of " + std::to_string(n_rows) + " rows differ, " + first;
}

std::string check_windows(const Device & device, const Case & one, const CaseData & data, const Weights & weights, int64_t n_rows) {
    device.apply(one.on);
    const Bytes whole = run(device, one, data, weights, 0, n_rows, UNTIL_REPLAYED);

    std::vector<int64_t> widths(n_rows, 1);
    if (one.promise == Promise::windows) {
        device.apply(for_windows(one));
        widths = one.windows(n_rows);
    }
    Bytes parts;
    int64_t first = 0;
    for (int64_t width : widths) {
        const Bytes part = run(device, one, data, weights, first, width);
        parts.insert(parts.end(), part.begin(), part.end());
        first += width;
    }
    const std::string difference = first_difference(whole, parts, n_rows);
    return difference.empty() ? "" : std::to_string(n_rows) + " rows: " + difference;
}

std::string check_padding(const Device & device, const Case & one, const CaseData & data, int64_t n_rows) {
    Case     padded      = one;
    CaseData padded_data = data;
    for (size_t i = 0; i < one.weights.size(); ++i) {
        padded.weights[i].ne[1] += one.padding;
        padded_data.weights[i] = make_data(padded.weights[i], 0, 1000 + i); // finite values behind the last cell
        const size_t slab        = ggml_row_size(one.weights[i].type, one.weights[i].ne[0])*one.weights[i].ne[1];
        const size_t padded_slab = padded_data.weights[i].size()/one.weights[i].ne[2];
        for (int64_t j = 0; j < one.weights[i].ne[2]; ++j) {
            memcpy(padded_data.weights[i].data() + j*padded_slab, data.weights[i].data() + j*slab, slab);
        }
    }
    for (size_t i = 0; i < one.inputs.size(); ++i) {
        if (one.inputs[i].fill == Fill::normal) {
            continue;
        }
        padded.inputs[i].ne[0] += one.padding;
        const size_t of_row        = one.inputs[i].bytes_of_row();
        const size_t padded_of_row = padded.inputs[i].bytes_of_row();
        padded_data.inputs[i].resize(data.n_rows*padded_of_row);
        for (int64_t row = 0; row < data.n_rows; ++row) {
            uint8_t * to = padded_data.inputs[i].data() + row*padded_of_row;
            memcpy(to, data.inputs[i].data() + row*of_row, of_row);
            for (int64_t cell = 0; cell < one.padding; ++cell) {
                const float       value_f32 = -INFINITY;
                const ggml_fp16_t value_f16 = ggml_fp32_to_fp16(value_f32);
                if (one.inputs[i].type == GGML_TYPE_F16) {
                    memcpy(to + of_row + cell*sizeof(value_f16), &value_f16, sizeof(value_f16));
                } else {
                    memcpy(to + of_row + cell*sizeof(value_f32), &value_f32, sizeof(value_f32));
                }
            }
        }
    }
    device.apply(one.on);
    const Bytes plain = run(device, one, data, Weights(device, one, data, 1), 0, n_rows);
    const Bytes more  = run(device, padded, padded_data, Weights(device, padded, padded_data, 1), 0, n_rows);
    const std::string difference = first_difference(plain, more, n_rows);
    return difference.empty() ? "" : std::to_string(one.padding) + " masked cells more: " + difference;
}

// normalised mean square error against the CPU; of indices, the share that is not the CPU's
double error_of(const ggml_tensor * result, const Bytes & ours, const Bytes & reference) {
    const size_t n = ours.size()/4;
    double error = 0.0;
    double norm  = 0.0;
    for (size_t i = 0; i < n; ++i) {
        if (result->type == GGML_TYPE_I32) {
            error += memcmp(ours.data() + 4*i, reference.data() + 4*i, 4) != 0;
            norm  += 1.0;
            continue;
        }
        float a;
        float b;
        memcpy(&a, ours.data() + 4*i, 4);
        memcpy(&b, reference.data() + 4*i, 4);
        if (std::isinf(b) && a == b) {
            continue;
        }
        error += ((double) a - b)*((double) a - b);
        norm  += (double) b*b;
    }
    return norm > 0.0 ? error/norm : error;
}

std::string check_values(const Device & device, const Device & cpu, const Case & one, const CaseData & data,
                         const Weights & weights, const Weights & cpu_weights, int64_t n_rows, double & error) {
    device.apply(one.on);
    const Graph graph(device, one, data, weights, 0, n_rows);
    if (!graph.supported()) {
        return "the device does not support it";
    }
    graph.compute();
    error = error_of(graph.result(), graph.output(), run(cpu, one, data, cpu_weights, 0, n_rows));
    char text[100];
    snprintf(text, sizeof(text), "%d rows: error %.2e against the CPU, at most %.0e", (int) n_rows, error, one.max_nmse);
    return error <= one.max_nmse ? "" : text;
}

} // namespace

int check(const Device & device, const std::vector<Case> & cases) {
    const Device cpu("CPU");
    int failed = 0;
    for (const Case & one : cases) {
        const int64_t n_most = *std::max_element(one.rows.begin(), one.rows.end());
        std::vector<std::string> problems;
        double error = 0.0;
        try {
            const CaseData data = make_case_data(one, n_most);
            const Weights  weights(device, one, data, 1);
            {
                const Weights cpu_weights(cpu, one, data, 1);
                for (int64_t n_rows : { one.rows.front(), n_most }) {
                    double here = 0.0;
                    problems.push_back(check_values(device, cpu, one, data, weights, cpu_weights, n_rows, here));
                    error = std::max(error, here);
                }
            }
            if (one.promise != Promise::values && problems.front() != "the device does not support it") {
                for (int64_t n_rows : one.rows) {
                    problems.push_back(check_windows(device, one, data, weights, n_rows));
                }
                if (one.padding > 0) {
                    problems.push_back(check_padding(device, one, data, n_most));
                }
            }
        } catch (const std::runtime_error & failure) {
            problems.push_back(failure.what());
        }
        problems.erase(std::remove(problems.begin(), problems.end(), ""), problems.end());
        printf("%-4s %-48s error %.1e\n", problems.empty() ? "ok" : "FAIL", one.name.c_str(), error);
        for (const std::string & problem : problems) {
            printf("     %s\n", problem.c_str());
        }
        fflush(stdout);
        failed += !problems.empty();
    }
    device.apply({});
    printf("%d of %d cases failed on %s\n", failed, (int) cases.size(), device.description().c_str());
    return failed;
}

} // namespace gpu_kernels
