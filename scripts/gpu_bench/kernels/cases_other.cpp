// Attention, indexer, top-k, the delta net's convolution input and the delta net itself.

#include "cases.h"

#include "lucebox-attn-cells.h"

#include <algorithm>
#include <cmath>

namespace gpu_kernels {

namespace {

const Environment OFF       = { { "GGML_CUDA_FEW_ROWS", "0" } };
const Environment INVARIANT = { { "GGML_CUDA_BATCH_INVARIANT", "1" } };

const std::vector<int64_t> ONE_TO_EIGHT = { 1, 2, 3, 4, 5, 6, 7, 8 };

Case attention(const std::string & name, ggml_type cache, int64_t head_size, int64_t n_head, int64_t n_head_kv, int64_t n_kv,
               int64_t visible) {
    Case result;
    result.name     = name;
    result.promise  = Promise::invariant;
    result.off      = OFF;
    result.on       = INVARIANT;
    result.rows     = ONE_TO_EIGHT;
    result.weights  = { { cache, { head_size, n_kv, n_head_kv } }, { cache, { head_size, n_kv, n_head_kv } } };
    result.inputs   = { { GGML_TYPE_F32, { head_size, n_head, 1 } },
                        { GGML_TYPE_F16, { n_kv, 1, 1 }, Fill::causal_mask, 1.0f, visible } };
    result.max_nmse = 5e-4;
    result.min_copies = 4;
    result.padding  = 768;
    result.build    = [head_size](ggml_context * ctx, const auto & weights, const auto & inputs, int64_t) {
        ggml_tensor * q = ggml_permute(ctx, inputs[0], 0, 2, 1, 3);
        return ggml_flash_attn_ext(
            ctx, q, weights[0], weights[1], inputs[1], 1.0f/std::sqrt((float) head_size), 0.0f, 0.0f);
    };
    return result;
}

// Pools of four cells and a tail of three, as the model has them. Of the pools that a row selected it sees the first
// `n_visible`, but for pool 0: in a short context top-k has to take others as well. Cells come from a table or follow from
// the numbers of pools.
Case named_attention(const std::string & name, int64_t head_size, int64_t n_head, int64_t n_head_kv, int64_t n_kv, int64_t n_top,
                     int64_t n_visible, bool has_table) {
    const int64_t n_pool = n_kv/4;
    Case result;
    result.name     = name;
    result.promise  = Promise::invariant;
    result.off      = OFF;
    result.on       = INVARIANT;
    result.rows     = ONE_TO_EIGHT;
    result.weights  = { { GGML_TYPE_F16, { head_size, n_kv, n_head_kv } }, { GGML_TYPE_F16, { head_size, n_kv, n_head_kv } },
                        { GGML_TYPE_I32, { 4, n_pool, 1 }, Fill::cells } };
    result.inputs   = { { GGML_TYPE_F32, { head_size, n_head, 1 } },
                        { GGML_TYPE_I32, { n_top, 1, 1 }, Fill::pools, 1.0f, n_pool },
                        { GGML_TYPE_I32, { LUCEBOX_POOL_RANGE_WORDS, 1, 1 }, Fill::pool_ranges, 1.0f, n_visible },
                        { GGML_TYPE_I32, { 3, 1, 1 }, Fill::tail, 1.0f, n_kv } };
    result.max_nmse = 5e-4;
    result.min_copies = 4;
    result.build    = [head_size, has_table](ggml_context * ctx, const auto & weights, const auto & inputs, int64_t) {
        ggml_tensor * q = ggml_permute(ctx, inputs[0], 0, 2, 1, 3);
        return lucebox_flash_attn_cells(ctx, q, weights[0], weights[1], inputs[1], has_table ? weights[2] : nullptr, inputs[2],
                                        inputs[3], 4, 1.0f/std::sqrt((float) head_size));
    };
    return result;
}

Case indexer(int64_t n_pool, int64_t visible) {
    Case result;
    result.name     = "invariant indexer " + std::to_string(n_pool) + " pools";
    result.promise  = Promise::invariant;
    result.off      = OFF;
    result.on       = INVARIANT;
    result.rows     = ONE_TO_EIGHT;
    result.weights  = { { GGML_TYPE_F32, { 128, 1, n_pool } } };
    result.inputs   = { { GGML_TYPE_F32, { 128, 4, 1 } }, { GGML_TYPE_F32, { 4, 1, 1 } },
                        { GGML_TYPE_F16, { n_pool, 1, 1 }, Fill::pool_mask, 1.0f, visible } };
    result.max_nmse = 1e-5;
    result.min_copies = 1;
    result.build    = [](ggml_context * ctx, const auto & weights, const auto & inputs, int64_t) {
        return ggml_lightning_indexer(ctx, inputs[0], weights[0], inputs[1], inputs[2]);
    };
    return result;
}

Case ranged_indexer(ggml_type keys, int64_t width, int64_t n_head, int64_t n_pool, int64_t visible) {
    Case result;
    result.name     = std::string("ranged indexer ") + ggml_type_name(keys) + " " + std::to_string(n_head) + "x" +
                  std::to_string(width) + " " + std::to_string(n_pool) + " pools";
    result.promise  = Promise::invariant;
    result.off      = OFF;
    result.on       = INVARIANT;
    result.rows     = ONE_TO_EIGHT;
    result.weights  = { { keys, { width, 1, n_pool } } };
    result.inputs   = { { GGML_TYPE_F32, { width, n_head, 1 } }, { GGML_TYPE_F32, { n_head, 1, 1 } },
                        { GGML_TYPE_I32, { LUCEBOX_POOL_RANGE_WORDS, 1, 1 }, Fill::pool_ranges, 1.0f, visible } };
    result.max_nmse = 1e-5;
    result.min_copies = 1;
    result.build    = [](ggml_context * ctx, const auto & weights, const auto & inputs, int64_t) {
        return lucebox_index_scores(ctx, inputs[0], weights[0], inputs[1], inputs[2]);
    };
    return result;
}

Case top_k(int64_t n_pool, int64_t k, Fill fill = Fill::scores) {
    Case result;
    result.name     = "invariant top-k " + std::to_string(k) + " of " + std::to_string(n_pool) +
                  (fill == Fill::few_scores ? " tied" : "");
    result.promise  = Promise::invariant;
    result.off      = OFF;
    result.on       = INVARIANT;
    result.rows     = ONE_TO_EIGHT;
    result.inputs   = { { GGML_TYPE_F32, { n_pool, 1, 1 }, fill, 1.0f, n_pool/3 } };
    result.max_nmse = 0.0; // indices, and the CPU chooses the same
    result.min_copies = 1;
    result.padding  = 300;
    result.build    = [k](ggml_context * ctx, const auto &, const auto & inputs, int64_t) {
        return ggml_top_k(ctx, inputs[0], k);
    };
    return result;
}

// [3 columns of state, channels] and the tokens behind it, which lie in memory as [channels, tokens]
Case conv_input(int64_t n_channels) {
    Case result;
    result.name     = "conv-concat " + std::to_string(n_channels) + " channels";
    result.promise  = Promise::values;
    result.off      = OFF;
    result.on       = { { "STRIX_CONCAT_T_MIN", "2" } };
    result.rows     = { 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64, 512 };
    result.weights  = { { GGML_TYPE_F32, { 3, n_channels, 1 } } };
    result.inputs   = { { GGML_TYPE_F32, { n_channels, 1, 1 } } };
    result.max_nmse = 0.0;
    result.min_copies = 16;
    result.build    = [](ggml_context * ctx, const auto & weights, const auto & inputs, int64_t) {
        return ggml_concat(ctx, weights[0], ggml_transpose(ctx, inputs[0]), 0);
    };
    return result;
}

// The end of a draft's graph behind an earlier draft: token and probability of each of n_rows sequences
Case draft_of_logits(int64_t n_logits, bool listed) {
    Case result;
    result.name     = "draft of " + std::to_string(n_logits) + (listed ? " listed" : "") + " logits";
    result.promise  = Promise::invariant;
    result.off      = { { "GGML_CUDA_BATCH_INVARIANT", "0" } };
    result.on       = INVARIANT;
    result.rows     = ONE_TO_EIGHT;
    if (listed) {
        result.weights = { { GGML_TYPE_I32, { 1, n_logits, 1 }, Fill::cells } };
    }
    result.inputs   = { { GGML_TYPE_F32, { n_logits, 1, 1 }, Fill::normal, 4.0f }, { GGML_TYPE_F32, { 2, 1, 1 } } };
    result.max_nmse = 1e-15; // of the squared tokens: a chance may be off by a thousandth at most
    result.min_copies = 1;
    result.build    = [n_logits](ggml_context * ctx, const auto & weights, const auto & inputs, int64_t n_rows) {
        ggml_tensor * logits = ggml_reshape_2d(ctx, inputs[0], n_logits, n_rows);
        ggml_tensor * best   = ggml_argmax(ctx, logits);
        ggml_tensor * prob   = ggml_get_rows(ctx, ggml_reshape_3d(ctx, ggml_soft_max(ctx, logits), 1, n_logits, n_rows),
                                             ggml_reshape_2d(ctx, best, 1, n_rows));
        ggml_tensor * token  = weights.empty() ? best : ggml_reshape_1d(ctx, ggml_get_rows(ctx, weights[0], best), n_rows);
        ggml_tensor * id     = ggml_reshape_3d(ctx, ggml_cast(ctx, token, GGML_TYPE_F32), 1, 1, n_rows);
        ggml_tensor * pair   = ggml_concat(ctx, id, prob, 0);
        return ggml_concat(ctx, ggml_reshape_3d(ctx, inputs[1], 2, 1, n_rows), pair, 1);
    };
    return result;
}

} // namespace

std::vector<Case> other_cases() {
    std::vector<Case> cases;
    cases.push_back(conv_input(10240)); // 48 value and 16 key heads of 128, twice the keys
    cases.push_back(conv_input(3000));  // a last block that is not full

    // the real model has 24 heads of 256 over 2; the others are the remaining ways to put heads into a block
    cases.push_back(attention("invariant attention f16 24/2 1k",  GGML_TYPE_F16, 256, 24, 2, 1024, 1000));
    cases.push_back(attention("invariant attention f16 24/2 16k", GGML_TYPE_F16, 256, 24, 2, 16384, 16300));
    cases.push_back(attention("invariant attention f16 24/2 64k", GGML_TYPE_F16, 256, 24, 2, 65536, 65000));
    cases.push_back(attention("invariant attention f16 16/2",     GGML_TYPE_F16, 128, 16, 2, 512, 300));
    cases.push_back(attention("invariant attention f16 4/2",      GGML_TYPE_F16, 64, 4, 2, 512, 300));
    cases.push_back(attention("invariant attention f16 3/3",      GGML_TYPE_F16, 64, 3, 3, 256, 100));
    cases.push_back(attention("invariant attention q8_0 24/2 1k", GGML_TYPE_Q8_0, 256, 24, 2, 1024, 1000));
    cases.push_back(attention("invariant attention q8_0 24/2 16k", GGML_TYPE_Q8_0, 256, 24, 2, 16384, 16300));

    for (const bool has_table : { false, true }) {
        const std::string cells = has_table ? " of a table" : " in order";
        cases.push_back(named_attention("named cells f16 24/2 1k" + cells,  256, 24, 2, 1024, 256, 200, has_table));
        cases.push_back(named_attention("named cells f16 24/2 16k" + cells, 256, 24, 2, 16384, 512, 4070, has_table));
        cases.push_back(named_attention("named cells f16 24/2 64k" + cells, 256, 24, 2, 65536, 512, 16370, has_table));
        cases.push_back(named_attention("named cells f16 16/2" + cells,     128, 16, 2, 512, 40, 100, has_table));
        cases.push_back(named_attention("named cells f16 4/2" + cells,      64, 4, 2, 512, 16, 60, has_table));
        cases.push_back(named_attention("named cells f16 3/1" + cells,      64, 3, 1, 256, 8, 40, has_table));
    }

    cases.push_back(indexer(256, 200));
    cases.push_back(indexer(16384, 16000));
    // sizes of the model around a block of 64 keys, and those that have no kernel of their own
    cases.push_back(ranged_indexer(GGML_TYPE_F16, 128, 4, 1024, 900));
    cases.push_back(ranged_indexer(GGML_TYPE_F16, 128, 4, 1089, 1000));
    cases.push_back(ranged_indexer(GGML_TYPE_F16, 128, 4, 4096, 4000));
    cases.push_back(ranged_indexer(GGML_TYPE_F16, 128, 4, 16384, 16000));
    cases.push_back(ranged_indexer(GGML_TYPE_F32, 128, 4, 256, 200));
    cases.push_back(ranged_indexer(GGML_TYPE_F16, 32, 2, 300, 64));

    cases.push_back(top_k(64, 16));
    cases.push_back(top_k(1024, 512));
    cases.push_back(top_k(5000, 512));
    cases.push_back(top_k(16384, 512));
    // a thread holds 4 or 24 values, or reads them again
    for (const int64_t n_pool : { 63, 1023, 1025, 4096, 4097, 24576, 24577, 33000 }) {
        cases.push_back(top_k(n_pool, std::min<int64_t>(n_pool, 512)));
    }
    for (const int64_t n_pool : { 1000, 4096, 17408, 24577 }) {
        cases.push_back(top_k(n_pool, 512, Fill::few_scores));
    }

    cases.push_back(draft_of_logits(4096, false));
    cases.push_back(draft_of_logits(64000, true));
    cases.push_back(draft_of_logits(1000, true));
    return cases;
}

std::vector<Case> all_cases() {
    std::vector<Case> cases = matrix_cases();
    for (Case & one : other_cases()) {
        cases.push_back(std::move(one));
    }
    return cases;
}

} // namespace gpu_kernels
