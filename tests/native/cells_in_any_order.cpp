// Decodes texts whose cells lie one behind the other, or not, and prints a digest of the logits of every batch.
// Arguments: model, 1 for one stream that all sequences share, 1 for attention to named cells.
#include "llama.h"

#include "lucebox-selection.h"

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

static llama_context * ctx;
static int32_t         n_vocab;
static llama_pos       n_past[3] = {};

struct part {
    llama_seq_id seq;
    int          n;
};

static void decode(const std::vector<part> & parts) {
    llama_batch batch = llama_batch_init(256, 0, 1);
    for (const part & each : parts) {
        for (int i = 0; i < each.n; ++i) {
            const int at       = batch.n_tokens++;
            const llama_pos p  = n_past[each.seq]++;
            batch.token[at]    = (int32_t) ((p * 7919 + each.seq * 104729 + p * p) % 250);
            batch.pos[at]      = p;
            batch.n_seq_id[at] = 1;
            batch.seq_id[at][0] = each.seq;
            batch.logits[at]   = 1;
        }
    }
    if (llama_decode(ctx, batch) != 0) {
        std::printf("decoding failed\n");
    }
    uint64_t digest = 14695981039346656037ull;
    for (int i = 0; i < batch.n_tokens; ++i) {
        const unsigned char * bytes = (const unsigned char *) llama_get_logits_ith(ctx, i);
        for (size_t b = 0; b < n_vocab * sizeof(float); ++b) {
            digest = (digest ^ bytes[b]) * 1099511628211ull;
        }
    }
    std::printf("%016llx\n", (unsigned long long) digest);
    llama_batch_free(batch);
}

static void take_back(llama_seq_id seq, int n) {
    n_past[seq] -= n;
    std::printf("taken back %d\n", llama_memory_seq_rm(llama_get_memory(ctx), seq, n_past[seq], -1));
}

int main(int, char ** argv) {
    llama_backend_init();
    llama_model_params   model_params = llama_model_default_params();
    llama_context_params params       = llama_context_default_params();
    params.n_ctx           = 1536;
    params.n_seq_max       = 3;
    params.n_rs_seq        = 8;
    params.n_ubatch        = 64;
    params.n_threads       = 1;
    params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.kv_unified      = std::strcmp(argv[2], "1") == 0;

    llama_model * model = llama_model_load_from_file(argv[1], model_params);
    ctx     = llama_init_from_model(model, params);
    n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const bool named = std::strcmp(argv[3], "1") == 0;
    std::printf("names cells %d\n", lucebox_select_cells(ctx, named) == named);

    decode({ { 0, 61 } });
    decode({ { 1, 47 } });
    for (int i = 0; i < 12; ++i) {
        decode({ { 0, 1 + i % 4 }, { 1, 1 + i % 4 } });
        decode({ { 0, 1 + i % 8 } });
    }
    // the cells of what is taken back go to whoever comes next
    take_back(0, 6);
    decode({ { 1, 3 } });
    decode({ { 0, 8 } });
    take_back(0, 5);
    decode({ { 0, 1 } });
    decode({ { 0, 7 } });

    llama_memory_seq_cp(llama_get_memory(ctx), 0, 2, -1, -1);
    n_past[2] = n_past[0];
    for (int i = 0; i < 3; ++i) {
        decode({ { 0, 2 }, { 2, 2 } });
        decode({ { 2, 5 } });
    }
    llama_memory_seq_rm(llama_get_memory(ctx), 2, -1, -1);
    n_past[2] = 0;
    decode({ { 0, 4 } });

    std::vector<uint8_t> state(llama_state_seq_get_size(ctx, 1));
    llama_state_seq_get_data(ctx, state.data(), state.size(), 1);
    llama_memory_seq_rm(llama_get_memory(ctx), 1, -1, -1);
    decode({ { 0, 8 } });
    decode({ { 2, 33 } });
    std::printf("restored %d\n", llama_state_seq_set_data(ctx, state.data(), state.size(), 1) == state.size());
    for (int i = 0; i < 4; ++i) {
        decode({ { 1, 3 } });
        decode({ { 2, 2 } });
    }
    llama_memory_clear(llama_get_memory(ctx), true);
    std::memset(n_past, 0, sizeof(n_past));
    decode({ { 1, 60 } });
    for (int i = 0; i < 6; ++i) {
        decode({ { 1, 1 + i } });
    }
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
