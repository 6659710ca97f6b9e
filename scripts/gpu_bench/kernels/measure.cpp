#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>

namespace gpu_kernels {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Interval {
    double median, low, high;
};

// Median with the interval of order statistics that holds it in at least 95 of 100 samples, whatever the distribution.
Interval median_interval(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const int n = (int) values.size();
    double tail        = std::pow(0.5, n); // P(fewer than 1 value below the median)
    double probability = tail;
    int    below       = 0;
    while (below + 1 < n/2) {
        probability *= (double) (n - below)/(below + 1);
        if (tail + probability > 0.025) {
            break;
        }
        tail += probability;
        below++;
    }
    const double median = n % 2 == 1 ? values[n/2] : 0.5*(values[n/2 - 1] + values[n/2]);
    return { median, values[below], values[n - 1 - below] };
}

// One arm: a graph of its own, since a captured graph keeps the kernels of its capture.
struct Arm {
    const Environment * environment;
    Graph graph;
    std::vector<double> times_us; // per set of weights
};

void print_interval(FILE * out, const char * name, const Interval & interval) {
    fprintf(out, "\"%s\": [%.4f, %.4f, %.4f]", name, interval.median, interval.low, interval.high);
}

void measure_rows(const Device & device, const Case & one, const CaseData & data, const Weights & weights, int64_t n_rows,
                  const MeasureOptions & options, FILE * out) {
    // upstream twice: the difference of the two is what this machine does by itself
    std::vector<Arm> arms;
    arms.reserve(3);
    for (const Environment * environment : { &one.off, &one.off, &one.on }) {
        arms.push_back({ environment, Graph(device, one, data, weights, 0, n_rows), {} });
    }
    if (!arms.front().graph.supported()) {
        fprintf(stderr, "%s: the device does not support it\n", one.name.c_str());
        return;
    }
    for (Arm & arm : arms) {
        device.apply(*arm.environment);
        for (int i = 0; i < 4; ++i) { // the first calls warm up, then capture
            arm.graph.compute();
        }
    }
    const Clock::time_point start = Clock::now();
    for (int round = 0; round < options.n_rounds; ++round) {
        if (round >= 5 && seconds_since(start) > options.case_limit_s) {
            break;
        }
        for (size_t i = 0; i < arms.size(); ++i) {
            Arm & arm = arms[(round + i) % arms.size()];
            device.apply(*arm.environment);
            arm.graph.compute(); // what another arm left in the caches is the same for all after this
            const Clock::time_point begin = Clock::now();
            arm.graph.compute();
            arm.times_us.push_back(1e6*seconds_since(begin)/weights.copies());
        }
    }

    std::vector<double> noise;
    std::vector<double> speedup;
    for (size_t i = 0; i < arms[0].times_us.size(); ++i) {
        noise.push_back(arms[0].times_us[i]/arms[1].times_us[i]);
        speedup.push_back(0.5*(arms[0].times_us[i] + arms[1].times_us[i])/arms[2].times_us[i]);
    }
    fprintf(out, "{\"case\": \"%s\", \"rows\": %d, \"rounds\": %d, \"copies\": %d, ", one.name.c_str(), (int) n_rows,
            (int) noise.size(), (int) weights.copies());
    print_interval(out, "stock_us", median_interval(arms[0].times_us));
    fprintf(out, ", ");
    print_interval(out, "ours_us", median_interval(arms[2].times_us));
    fprintf(out, ", ");
    print_interval(out, "noise", median_interval(noise));
    fprintf(out, ", ");
    print_interval(out, "speedup", median_interval(speedup));
    fprintf(out, "}\n");
    fflush(out);
}

} // namespace

void measure(const Device & device, const std::vector<Case> & cases, const MeasureOptions & options, FILE * out) {
    for (const Case & one : cases) {
        const std::vector<int64_t> & rows = options.rows.empty() ? one.rows : options.rows;
        const CaseData data = make_case_data(one, *std::max_element(rows.begin(), rows.end()));
        size_t bytes = 0;
        for (const Bytes & weight : data.weights) {
            bytes += weight.size();
        }
        const size_t copies = bytes == 0 ? 16 : std::min<size_t>(64, (options.weight_bytes + bytes - 1)/bytes);
        try {
            const Weights weights(device, one, data, std::max(copies, one.min_copies));
            for (int64_t n_rows : rows) {
                measure_rows(device, one, data, weights, n_rows, options, out);
            }
        } catch (const std::runtime_error & failure) {
            fprintf(stderr, "%s: %s\n", one.name.c_str(), failure.what());
        }
    }
    device.apply({});
}

} // namespace gpu_kernels
