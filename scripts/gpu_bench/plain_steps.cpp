// Plain decoding with llama.h alone: the same program runs with the libraries of one build or another.
//
//   lucebox-plain-steps MODEL N_CONTEXT      then, for each line "N" of standard input: decodes N tokens greedily behind a
//   short prompt and prints the milliseconds of each on average, and a checksum of the tokens
#include "llama.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace {

constexpr int N_PROMPT = 64;

llama_token likeliest(const float * logits, int32_t n) {
    return (llama_token) (std::max_element(logits, logits + n) - logits);
}

bool decode(llama_context * ctx, std::vector<llama_token> & tokens) {
    return llama_decode(ctx, llama_batch_get_one(tokens.data(), (int32_t) tokens.size())) == 0;
}

} // namespace

int main(int argc, char ** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL N_CONTEXT\n", argv[0]);
        return 2;
    }
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) {
            fputs(text, stderr);
        }
    }, nullptr);
    llama_backend_init();
    llama_model_params of_model = llama_model_default_params();
    of_model.n_gpu_layers = 999;
    llama_model * model = llama_model_load_from_file(argv[1], of_model);
    llama_context_params of_context = llama_context_default_params();
    of_context.n_ctx           = (uint32_t) atoi(argv[2]);
    of_context.n_threads       = 1;
    of_context.n_threads_batch = 1;
    of_context.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    llama_context * ctx = model == nullptr ? nullptr : llama_init_from_model(model, of_context);
    if (ctx == nullptr) {
        fprintf(stderr, "cannot open '%s'\n", argv[1]);
        return 1;
    }
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));

    int n_tokens = 0;
    while (scanf("%d", &n_tokens) == 1) {
        llama_memory_clear(llama_get_memory(ctx), true);
        std::vector<llama_token> tokens(N_PROMPT);
        std::iota(tokens.begin(), tokens.end(), 300);
        bool     done     = decode(ctx, tokens);
        uint32_t checksum = 0;
        const auto start  = std::chrono::steady_clock::now();
        for (int i = 0; i < n_tokens && done; ++i) {
            tokens   = { likeliest(llama_get_logits_ith(ctx, -1), n_vocab) };
            checksum = 31*checksum + (uint32_t) tokens.front();
            done     = decode(ctx, tokens);
        }
        if (!done) {
            fprintf(stderr, "decoding failed\n");
            return 1;
        }
        llama_synchronize(ctx);
        const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
        printf("%.6f %u\n", took.count()/n_tokens, checksum);
        fflush(stdout);
    }
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
