// Matrix products at the widths of the real model: 2,560 wide, 512 experts of 640, ten used, four streams.

#include "cases.h"

#include <algorithm>

namespace gpu_kernels {

namespace {

constexpr int64_t N_EMBD        = 2560;
constexpr int64_t N_EXPERT      = 512;
constexpr int64_t N_EXPERT_USED = 10;
constexpr int64_t N_FF_EXPERT   = 640;

const Environment OFF = { { "GGML_CUDA_FEW_ROWS", "0" } };

std::vector<int64_t> range(int64_t first, int64_t last) {
    std::vector<int64_t> values;
    for (int64_t i = first; i <= last; ++i) {
        values.push_back(i);
    }
    return values;
}

std::vector<int64_t> windows_of_eight(int64_t n) {
    std::vector<int64_t> widths;
    for (int64_t first = 0; first < n; first += 8) {
        widths.push_back(std::min<int64_t>(8, n - first));
    }
    return widths;
}

// as even as can be, of at most four
std::vector<int64_t> even_windows(int64_t n) {
    const int64_t n_windows = (n + 3)/4;
    std::vector<int64_t> widths;
    for (int64_t i = 0; i < n_windows; ++i) {
        widths.push_back((i + 1)*n/n_windows - i*n/n_windows);
    }
    return widths;
}

Case product(const std::string & name, ggml_type type, int64_t n_in, int64_t n_out) {
    Case result;
    result.name       = name;
    result.off        = OFF;
    result.weights    = { { type, { n_in, n_out, 1 }, Fill::normal, 0.02f } };
    result.inputs     = { { GGML_TYPE_F32, { n_in, 1, 1 } } };
    result.max_nmse   = 5e-4;
    result.min_copies = 1;
    result.build      = [](ggml_context * ctx, const auto & weights, const auto & inputs, int64_t) {
        return ggml_mul_mat(ctx, weights[0], inputs[0]);
    };
    return result;
}

Case chunked(const std::string & name, ggml_type type, int64_t n_in, int64_t n_out, Environment on) {
    Case result    = product(name, type, n_in, n_out);
    result.promise = Promise::windows;
    result.on      = std::move(on);
    result.rows    = range(9, 32);
    result.windows = windows_of_eight;
    return result;
}

Case invariant_product(const std::string & name, ggml_type type, int64_t n_in, int64_t n_out) {
    Case result    = product(name, type, n_in, n_out);
    result.promise = Promise::invariant;
    result.on      = { { "GGML_CUDA_BATCH_INVARIANT", "1" } };
    result.rows    = range(1, 8);
    return result;
}

// gate and up of the routed experts, and the shared expert beside them as the graph of the model has it
Case experts(const std::string & name, ggml_type type, bool glu, bool shared) {
    Case result;
    result.name = name;
    result.off  = OFF;
    for (int i = 0; i < (glu ? 2 : 1); ++i) {
        result.weights.push_back({ type, { N_EMBD, N_FF_EXPERT, N_EXPERT }, Fill::normal, 0.02f });
    }
    for (int i = 0; i < (shared ? 2 : 0); ++i) {
        result.weights.push_back({ type, { N_EMBD, N_FF_EXPERT, 1 }, Fill::normal, 0.02f });
    }
    result.inputs     = { { GGML_TYPE_F32, { N_EMBD, 1, 1 } }, { GGML_TYPE_I32, { N_EXPERT, 1, 1 }, Fill::experts } };
    result.max_nmse   = 5e-4;
    result.min_copies = 4; // of half a gigabyte each
    result.build      = [glu, shared](ggml_context * ctx, const auto & weights, const auto & inputs, int64_t n_rows) {
        ggml_tensor * ids   = ggml_view_2d(ctx, inputs[1], N_EXPERT_USED, n_rows, inputs[1]->nb[1], 0);
        ggml_tensor * input = ggml_reshape_3d(ctx, inputs[0], N_EMBD, 1, n_rows);
        ggml_tensor * out   = ggml_mul_mat_id(ctx, weights[0], input, ids);
        if (glu) {
            out = ggml_swiglu_split(ctx, out, ggml_mul_mat_id(ctx, weights[1], input, ids));
        }
        if (shared) {
            ggml_tensor * beside = ggml_swiglu_split(
                ctx, ggml_mul_mat(ctx, weights[2], inputs[0]), ggml_mul_mat(ctx, weights[3], inputs[0]));
            out = ggml_add(ctx, out, ggml_reshape_3d(ctx, beside, N_FF_EXPERT, 1, n_rows));
        }
        return out;
    };
    return result;
}

Case chunked_experts(const std::string & name, ggml_type type, bool glu, bool shared) {
    Case result    = experts(name, type, glu, shared);
    result.promise = Promise::windows;
    result.on      = { { "STRIX_MOE_VEC_CHUNK", "4" }, { "STRIX_MOE_VEC_CHUNK_MAX_T", "16" } };
    result.rows    = range(5, 16);
    result.windows = even_windows;
    return result;
}

Case invariant_experts(const std::string & name, ggml_type type, bool glu, bool shared) {
    Case result    = experts(name, type, glu, shared);
    result.promise = Promise::invariant;
    result.on      = { { "GGML_CUDA_BATCH_INVARIANT", "1" } };
    result.rows    = range(1, 8);
    return result;
}

struct TypeName {
    ggml_type    type;
    const char * name;
};

constexpr TypeName QUANTISED[] = {
    { GGML_TYPE_IQ4_XS, "iq4_xs" }, { GGML_TYPE_IQ3_S, "iq3_s" }, { GGML_TYPE_Q4_K, "q4_k" },
    { GGML_TYPE_Q6_K,   "q6_k"   }, { GGML_TYPE_Q8_0,  "q8_0"  },
};

} // namespace

std::vector<Case> matrix_cases() {
    std::vector<Case> cases;
    cases.push_back(chunked("f32-columns router", GGML_TYPE_F32, N_EMBD, N_EXPERT, { { "STRIX_F32_VEC_CHUNK_MAX", "32" } }));
    for (const TypeName & type : QUANTISED) {
        const Environment on = { { "STRIX_Q_VEC_CHUNK_MAX", "32" }, { "STRIX_Q_VEC_CHUNK_ROWS", "1024" } };
        const std::string name = std::string("quantised-columns ") + type.name;
        cases.push_back(chunked(name + " attention-kv", type.type, N_EMBD, 512, on));
        if (type.type == GGML_TYPE_Q8_0 || type.type == GGML_TYPE_Q4_K) {
            cases.push_back(chunked(name + " hyper-connection", type.type, 4*N_EMBD, 320, on));
        }
    }
    for (const TypeName & type : QUANTISED) {
        const std::string name = std::string("experts ") + type.name;
        cases.push_back(chunked_experts(name, type.type, false, false));
        if (type.type != GGML_TYPE_Q6_K) {
            cases.push_back(chunked_experts(name + " gate-up", type.type, true, false));
        }
    }
    cases.push_back(chunked_experts("experts q4_k gate-up shared", GGML_TYPE_Q4_K, true, true));

    for (const TypeName & type : QUANTISED) {
        const std::string name = std::string("invariant ") + type.name;
        cases.push_back(invariant_product(name, type.type, N_EMBD, 2*N_EMBD));
        cases.push_back(invariant_experts(name + " experts gate-up", type.type, true, false));
    }
    cases.push_back(invariant_product("invariant f32 router", GGML_TYPE_F32, N_EMBD, N_EXPERT));
    cases.push_back(invariant_product("invariant f32 shared-expert-gate", GGML_TYPE_F32, N_EMBD, 1));
    cases.push_back(invariant_product("invariant f16", GGML_TYPE_F16, N_EMBD, 512));
    cases.push_back(invariant_product("invariant bf16", GGML_TYPE_BF16, N_EMBD, 512));
    cases.push_back(invariant_experts("invariant q4_k experts gate-up shared", GGML_TYPE_Q4_K, true, true));
    return cases;
}

} // namespace gpu_kernels
