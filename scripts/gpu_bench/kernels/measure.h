#pragma once

#include "device.h"

#include <cstdio>

namespace gpu_kernels {

struct MeasureOptions {
    int    n_rounds      = 21;
    double case_limit_s  = 20.0; // rounds end early when a case has had this time, but not before five
    size_t weight_bytes  = 256u << 20; // sets of weights together, so that a cache does not hold them
    std::vector<int64_t> rows; // in place of those of the case
};

// Writes one JSON object per case and number of rows, a line each: upstream's dispatch against ours, in turns.
void measure(const Device & device, const std::vector<Case> & cases, const MeasureOptions & options, FILE * out);

} // namespace gpu_kernels
