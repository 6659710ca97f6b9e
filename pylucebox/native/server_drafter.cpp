#include "server_drafter.h"

#include "draft_rows.h"
#include "graphs.h"
#include "mtp_layouts.h"
#include "server_drafts.h"
#include "server_policy.h"
#include "server_sweep.h"

#include "json.h"
#include "llama-cpp.h"

#include <cstdio>
#include <memory>
#include <mutex>

namespace lucebox {

namespace {

// Rows of the widest ubatches whose graphs are kept, as in the engine: verify steps, and chains of a few slots.
constexpr uint32_t MAX_KEPT_ROWS       = 2 * LUCEBOX_MAX_WIDTH;
constexpr uint32_t MAX_KEPT_DRAFT_ROWS = 4 * LUCEBOX_MAX_DRAFT;

table_place place_of(const lucebox_server_table & table) {
    return { table.path ? table.path : "", (size_t) table.offset, (size_t) table.n_bytes, (enum ggml_type) table.type };
}

// What was asked for, and what has to live as long as the model. The server may be put to sleep and load it again.
struct wanted {
    std::vector<int32_t>        draft_ids;
    bool                        covers_part = false;
    table_place                 head;
    table_place                 embd;
    bool                        chained     = true;
    uint32_t                    n_kept      = 0;
    bool                        measure     = false;
    std::unique_ptr<draft_rows> rows;
    std::mutex                  mutex;
    costs_by_slots              costs = {};
};

wanted & the_wanted() {
    static wanted * one = new wanted; // never destroyed: the server's models may outlive static objects
    return *one;
}

std::unique_ptr<common_speculative_drafter> make_drafter(llama_context * trunk, llama_context * mtp, uint32_t n_seq,
                                                         int32_t n_max) {
    wanted & want = the_wanted();
    try {
        llama_model * block = const_cast<llama_model *>(llama_get_model(mtp)); // the server's own, which is not const
        want.rows.reset();
#ifdef LUCEBOX_DRAFT_ROWS
        if (!want.draft_ids.empty() || want.covers_part) {
            want.rows = std::make_unique<draft_rows>(block, llama_get_model(trunk), want.head, want.embd, want.draft_ids);
        }
#endif
        if (llama_model_n_layer_nextn(block) != 1) {
            fail(LUCEBOX_ERR_ARGUMENT, "the model has %d MTP blocks", llama_model_n_layer_nextn(block));
        }
        auto made = std::make_unique<server_drafter>(trunk, mtp, n_seq, n_max, want.chained);
        lucebox_keep_graphs(trunk, want.n_kept, MAX_KEPT_ROWS);
        lucebox_keep_graphs(mtp, want.n_kept, MAX_KEPT_DRAFT_ROWS);
        if (want.measure && n_max == LUCEBOX_MAX_DRAFT) {
            costs_by_slots found;
            measure_costs(trunk, *made, found);
            const std::lock_guard<std::mutex> lock(want.mutex);
            want.costs = found;
        }
        policy_mailbox().set_drafter(trunk, is_on_gpu(trunk), {
            { "kind", "lucebox" },
            { "draft_chain", made->why_stepwise().empty() },
            { "why_stepwise", made->why_stepwise() },
            { "draft_vocab", want.rows ? (int64_t) want.rows->n_tokens() : (int64_t) llama_vocab_n_tokens(llama_model_get_vocab(block)) },
            { "mtp_kv_in_trunk", made->why_no_writer().empty() },
            { "why_no_kv_in_trunk", made->why_no_writer() },
            { "coupled_drafts", server_drafter::COUPLES },
        });
        return made;
    } catch (const std::exception & e) {
        std::fprintf(stderr, "lucebox: upstream's loop makes the drafts: %s\n", e.what());
        policy_mailbox().set_drafter(trunk, is_on_gpu(trunk), { { "kind", "upstream" }, { "reason", e.what() } });
        return nullptr;
    }
}

} // namespace

int run_with_drafter(const std::function<int()> & serve) {
    const without_own_head no_head(!the_wanted().draft_ids.empty() && !the_wanted().covers_part);
    return serve();
}

} // namespace lucebox

extern "C" {

void lucebox_server_use_drafter(const lucebox_server_drafter_params * params) {
    lucebox::wanted & want = lucebox::the_wanted();
    want.draft_ids.assign(params->draft_ids, params->draft_ids + params->n_draft_ids);
    want.covers_part = params->covers_part != 0;
    want.head        = lucebox::place_of(params->head);
    want.embd        = lucebox::place_of(params->embd);
    want.chained     = params->draft_chain != 0;
    want.n_kept      = (uint32_t) params->n_kept_graphs;
    want.measure     = params->measure != 0;
    common_speculative_set_drafter(lucebox::make_drafter);
}

void lucebox_server_get_costs(int32_t n_active, lucebox_server_costs * out) {
    lucebox::wanted & want = lucebox::the_wanted();
    const std::lock_guard<std::mutex> lock(want.mutex);
    *out = n_active >= 1 && (size_t) n_active <= want.costs.size() ? want.costs[(size_t) n_active - 1] : lucebox_server_costs{};
}
}
