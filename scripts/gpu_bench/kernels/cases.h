#pragma once

#include "operands.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gpu_kernels {

using Environment = std::vector<std::pair<std::string, std::string>>;

// Which promise a case is there for.
enum class Promise {
    windows,   // all rows at once equal the same rows in windows, as the chunked kernel cuts them
    invariant, // every row equals the row alone
    values,    // only that the values are right: no operation on windows stands for the whole
};

// One operation at the widths of the real model. The rows of a step are the last dimension of every input, so that a
// window of them is a contiguous part of the data of all.
struct Case {
    std::string name;
    Promise     promise;
    Environment off; // settings of upstream's dispatch
    Environment on;  // settings of ours
    std::vector<int64_t> rows; // where the kernel is claimed, for `measure`
    std::vector<Operand> weights;
    std::vector<Operand> inputs; // ne of one row: the dimension of rows is appended
    double max_nmse; // against the CPU backend
    size_t min_copies; // sets of weights in a measurement, at least
    int64_t padding = 0; // masked cells (attention) or scores of -infinity (top-k) behind the last, which must change nothing

    // The output's rows are its last dimension too, unless the promise is `values`.
    std::function<ggml_tensor *(ggml_context *, const std::vector<ggml_tensor *> & weights,
                                const std::vector<ggml_tensor *> & inputs, int64_t n_rows)> build;

    // The widths of the windows that `n_rows` are cut into; rows alone if empty.
    std::function<std::vector<int64_t>(int64_t n_rows)> windows;
};

std::vector<Case> matrix_cases();
std::vector<Case> other_cases();
std::vector<Case> all_cases();

} // namespace gpu_kernels
