// A session: the trunk's context, the drafter, and what is known of each sequence.
#pragma once

#include "internal.h"
#include "mtp_drafter.h"
#include "mtp_writer.h"

#include <atomic>
#include <cmath>
#include <vector>

namespace lucebox {

enum class seq_phase {
    empty,  // cleared
    ready,  // prefilled; `last` is sampled and not in the context
    failed, // a call broke off half-way; only clearing helps
};

struct seq_state {
    seq_phase          phase   = seq_phase::empty;
    int32_t            n_past  = 0;
    llama_token        last    = LLAMA_TOKEN_NULL;
    bool               use_mtp = false;
    int32_t            n_plain = 0; // cycles in a row that drafted nothing
    float              logprob = NAN; // of the last token, if somebody asked for it
    common_sampler_ptr sampler;
    int32_t            n_rows = 0; // rows of the last call whose logits can be asked for
    int32_t            rows[LUCEBOX_MAX_WIDTH];
    std::string        failure; // why its sampler failed

    // Whether it has stopped to draft, or never began, as far as one can tell.
    bool rests() const {
        const int32_t n_waits = logprob > -0.35f ? 4 : 1;
        return n_plain >= n_waits;
    }
};

// The next token of a sequence, sampled from a row of the last batch. Throws with LUCEBOX_ERR_SAMPLING.
llama_token next_token(seq_state & state, llama_context * ctx, int32_t row);

} // namespace lucebox

struct lucebox_session {
    std::shared_ptr<lucebox::model_state> model;
    lucebox_session_params                params;
    std::atomic<bool>                     abort{ false };
    llama_context_ptr                     ctx;
    llama_context_ptr                     mtp_ctx; // of the drafter
    std::unique_ptr<lucebox::mtp_drafter> drafter; // null when max_width is 1
    std::unique_ptr<lucebox::mtp_writer>  writer;  // null when the block reads prompts in a pass of its own
    std::string                           why_no_writer;
    std::vector<float>                    newest; // state of the newest pair, on its way to the drafter
    common_batch                          batch;
    bool                                  attends_selected = false; // few rows name their cells
    std::vector<lucebox::seq_state>       seqs;
    bool                                  wide_state = false; // the trunk hands out its wide state
    int32_t                               n_wide_threads = 0; // of batches with several tokens, as last set
    lucebox::draft_counts                 proposed; // cost of the drafts made since the last cycle

    lucebox::seq_state & at(int32_t seq);
    const lucebox::seq_state & at(int32_t seq) const;
    lucebox::seq_state & ready(int32_t seq);

    void clear(int32_t seq);

    // Hands the newest pair to the drafter, in place of those that wait if the trunk's graph has written these.
    void feed_newest(int32_t seq, bool others_are_written);

    // Lets the drafts of a sequence foresee the draws of its sampler.
    void couple(int32_t seq, const lucebox::draft_pick & pick);

    // The trunk hands out its wide state only while a sequence uses it.
    void want_wide_state(bool want);

    // Threads of batches with several tokens; those with one always take n_threads.
    void use_threads(int32_t n_wide);

    // Runs `batch` through the trunk. Throws; sequences in the batch are then in an unknown state.
    void run_trunk();
};
