#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace gpu_kernels {

// How the values of an operand are made.
enum class Fill {
    normal,      // normal deviates; of a quantised type, rows of a pool of quantised rows
    scores,      // rectified, with many exact zeros and repeated values
    experts,     // I32: a permutation of all experts for each row, of which the first are used
    causal_mask, // F16: 0 for the cells that a row sees, -infinity behind them
    pool_mask,   // the same, of pools
    pool_ranges, // I32 [3]: from pool 1 on, row by row one more than `visible` of them; cells from 5 on
    few_scores,  // 0 or 1, and -infinity from `visible` on: hardly any value stands alone
    pools,       // I32: distinct numbers below `visible` in ascending order, as top-k gives them
    cells,       // I32: a permutation of the cells, those of a pool beside each other
    tail,        // I32: numbers below `visible`, or `visible` itself where there is no cell
};

struct Operand {
    ggml_type type;
    std::array<int64_t, 3> ne; // without the dimension of rows, for an input; trailing ones do not count
    Fill fill = Fill::normal;
    float scale = 1.0f;
    int64_t visible = 0; // cells that the first row sees, for the masks; of pools and a tail, see there

    int n_dims() const;
    size_t bytes_of_row() const; // of all that one row has
};

using Bytes = std::vector<uint8_t>;

// `n_rows` rows of an input, or a weight if 0; the same for the same seed.
Bytes make_data(const Operand & operand, int64_t n_rows, uint64_t seed);

ggml_tensor * new_tensor(ggml_context * ctx, const Operand & operand, int64_t n_rows);

} // namespace gpu_kernels
