#include "operands.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <random>

namespace gpu_kernels {

namespace {

// Rows of a quantised weight are drawn from this many: quantising half a billion values takes minutes.
constexpr int64_t POOL_ROWS = 256;

const Bytes & pool_of_rows(ggml_type type, int64_t n_columns, float scale) {
    static std::map<std::tuple<int, int64_t, float>, Bytes> pools;
    Bytes & pool = pools[{ type, n_columns, scale }];
    if (pool.empty()) {
        std::mt19937_64 random(n_columns);
        std::normal_distribution<float> normal(0.0f, scale);
        std::vector<float> values(POOL_ROWS*n_columns);
        std::generate(values.begin(), values.end(), [&] { return normal(random); });
        const std::vector<float> importance(n_columns, 1.0f); // some types need one
        pool.resize(POOL_ROWS*ggml_row_size(type, n_columns));
        ggml_quantize_chunk(type, values.data(), pool.data(), 0, POOL_ROWS, n_columns, importance.data());
    }
    return pool;
}

void fill_from_pool(const Operand & operand, int64_t n, uint64_t seed, Bytes & data) {
    const Bytes & pool  = pool_of_rows(operand.type, operand.ne[0], operand.scale);
    const size_t  bytes = ggml_row_size(operand.type, operand.ne[0]);
    std::mt19937_64 random(seed);
    for (int64_t i = 0; i < n/operand.ne[0]; ++i) {
        memcpy(data.data() + i*bytes, pool.data() + (random() % POOL_ROWS)*bytes, bytes);
    }
}

template <typename T, typename Make> void fill_each(Bytes & data, Make make) {
    T * values = (T *) data.data();
    for (size_t i = 0; i < data.size()/sizeof(T); ++i) {
        values[i] = make(i);
    }
}

} // namespace

int Operand::n_dims() const {
    int n = 3;
    while (n > 1 && ne[n - 1] == 1) {
        n--;
    }
    return n;
}

size_t Operand::bytes_of_row() const {
    return ggml_row_size(type, ne[0])*ne[1]*ne[2];
}

Bytes make_data(const Operand & operand, int64_t n_rows, uint64_t seed) {
    const int64_t rows   = std::max<int64_t>(n_rows, 1);
    const int64_t of_row = operand.ne[0]*operand.ne[1]*operand.ne[2];
    Bytes data(rows*operand.bytes_of_row());

    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0f, operand.scale);
    switch (operand.fill) {
        case Fill::normal:
            if (operand.type == GGML_TYPE_F32) {
                fill_each<float>(data, [&](size_t) { return normal(random); });
            } else if (operand.type == GGML_TYPE_F16) {
                fill_each<ggml_fp16_t>(data, [&](size_t) { return ggml_fp32_to_fp16(normal(random)); });
            } else if (operand.type == GGML_TYPE_BF16) {
                fill_each<ggml_bf16_t>(data, [&](size_t) { return ggml_fp32_to_bf16(normal(random)); });
            } else {
                fill_from_pool(operand, rows*of_row, seed, data);
            }
            break;
        case Fill::scores:
            fill_each<float>(data, [&](size_t) { return std::max(0.0f, std::round(8.0f*normal(random))/8.0f); });
            break;
        case Fill::few_scores:
            fill_each<float>(data, [&](size_t i) {
                const float score = (float) (random() % 2);
                return (int64_t) i % of_row < operand.visible ? score : -INFINITY;
            });
            break;
        case Fill::pool_ranges:
            fill_each<int32_t>(data, [&](size_t i) {
                const int32_t range[] = { 1, (int32_t) (operand.visible + (int64_t) i / of_row), 5 };
                return range[(int64_t) i % of_row];
            });
            break;
        case Fill::experts: {
            int32_t * ids = (int32_t *) data.data();
            for (int64_t row = 0; row < rows; ++row) {
                std::iota(ids + row*of_row, ids + (row + 1)*of_row, 0);
                std::shuffle(ids + row*of_row, ids + (row + 1)*of_row, random);
            }
            break;
        }
        case Fill::causal_mask:
        case Fill::pool_mask: {
            const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY);
            // sparse attention sees a part of the cells: every third is left out, those of the row itself never
            fill_each<ggml_fp16_t>(data, [&](size_t i) {
                const int64_t row  = (int64_t) i / of_row;
                const int64_t cell = (int64_t) i % of_row;
                const bool seen = cell < operand.visible + row;
                const bool kept = operand.fill == Fill::pool_mask || cell % 3 != 1 || cell + 1 == operand.visible + row;
                return seen && kept ? ggml_fp32_to_fp16(0.0f) : hidden;
            });
            break;
        }
        case Fill::pools: {
            std::vector<int32_t> all(operand.visible);
            std::iota(all.begin(), all.end(), 0);
            for (int64_t row = 0; row < rows; ++row) {
                std::shuffle(all.begin(), all.end(), random);
                std::sort(all.begin(), all.begin() + of_row);
                memcpy(data.data() + row*operand.bytes_of_row(), all.data(), operand.bytes_of_row());
                std::sort(all.begin(), all.end());
            }
            break;
        }
        case Fill::cells: {
            int32_t * cells = (int32_t *) data.data();
            std::iota(cells, cells + rows*of_row, 0);
            std::shuffle(cells, cells + rows*of_row, random);
            break;
        }
        case Fill::tail:
            fill_each<int32_t>(data, [&](size_t i) { return (int32_t) (i % 2 == 0 ? random() % operand.visible : operand.visible); });
            break;
    }
    return data;
}

ggml_tensor * new_tensor(ggml_context * ctx, const Operand & operand, int64_t n_rows) {
    std::array<int64_t, 4> ne = { operand.ne[0], operand.ne[1], operand.ne[2], 1 };
    int n_dims = operand.n_dims();
    if (n_rows > 0) {
        ne[n_dims++] = n_rows;
    }
    return ggml_new_tensor(ctx, operand.type, n_dims, ne.data());
}

} // namespace gpu_kernels
