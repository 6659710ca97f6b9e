// Drafts with the model's MTP block, one chain per sequence, all sequences of a step together.
//
// The block reads pairs: the trunk's state after position p and the token at p + 1. A pair is computed once, in
// the cache of the block, at position p, as the reference implementation places it. Pairs that the trunk has
// produced but no draft has needed yet wait here; the next draft runs them in the launch of its first step, so
// catching up costs no launch of its own, and rejected rows are never computed.
//
// A chain starts from the newest pair and may be extended any number of times. Its drafts after the first come from
// the block's own state, so what they leave in the cache goes with the chain: when it was verified (`settle`), or when
// something else is to happen to the sequence (`drop`).
//
// The drafts of a call are made in one launch where the graph for that is to be had (mtp_chain.cpp): the device picks
// each token and goes on from it, and the host waits once. Otherwise it waits for each draft, and picks.
#pragma once

#include "internal.h"

#include <vector>

namespace lucebox {

// What drafting cost.
struct draft_counts {
    int64_t time_us     = 0;
    int32_t n_rows      = 0;
    int32_t n_steps     = 0;
    int32_t n_waits     = 0; // of the host for the device
    bool    graph_built = false;
};

class mtp_drafter {
  public:
    // `context` was made with LLAMA_CONTEXT_TYPE_MTP and outlives the drafter. With `chained` the drafts of a call are made in one launch, if
    // that can be had.
    mtp_drafter(llama_context * context, uint32_t n_seq, const model_files & files, bool chained);

    // Why each draft has a launch of its own; empty if not.
    const std::string & why_stepwise() const { return stepwise; }

    void clear(int32_t seq);

    // The trunk's state `hidden` after position `pos`, and the token that follows it. There must be no chain.
    void feed(int32_t seq, llama_token next, llama_pos pos, const float * hidden);

    // The pairs that wait are in the block's cache already. There must be no chain.
    void forget_waiting(int32_t seq);

    // Takes the rows from `pos` on out of the block's cache.
    void forget_from(int32_t seq, llama_pos pos);

    // How the drafts of a sequence are picked from now on; `clear` goes back to the likeliest token.
    void couple(int32_t seq, const draft_pick & pick) { picks[(size_t) seq] = pick; }

    // Writes the n_vocab logits that the first draft of a sequence is picked from, and begins its chain with that draft.
    // There must be no chain.
    void first_logits(int32_t seq, float * logits);

    // Replaces the token of the newest pair, which was not computed. There must be no chain.
    void force(int32_t seq, llama_token next);

    // Forgets pairs from `pos` on, computed or waiting. There must be no chain.
    void go_back_to(int32_t seq, llama_pos pos);

    // Position of the pair that is neither computed nor waits yet. There must be no chain.
    llama_pos next_pos(int32_t seq) const;

    // Computes all pairs that wait but the newest.
    void catch_up(int32_t seq, draft_counts & counts);

    // Computes all pairs that wait. No chain can start before the next is fed.
    void catch_up_wholly(int32_t seq, draft_counts & counts);

    // Makes the chain of each sequence n_more[seq] drafts longer; none may become longer than LUCEBOX_MAX_DRAFT.
    void extend(const std::vector<int32_t> & n_more, draft_counts & counts);

    const lucebox_proposal & chain(int32_t seq) const { return sequences[(size_t) seq].chain; }

    // Ends the chain; the pair it started from stays computed. Does nothing without one.
    void settle(int32_t seq);

    // Ends the chain; the pair it started from waits again. Does nothing without one.
    void drop(int32_t seq);

    llama_context * context() const { return ctx; }

    struct sequence {
        std::vector<llama_token> tokens; // pairs that wait, oldest first; with a chain, the pair it started from
        std::vector<llama_pos>   positions;
        std::vector<float>       hidden;
        lucebox_proposal         chain = {};
        std::vector<float>       chain_hidden; // the block's state behind the last draft
    };

    const sequence & waiting(int32_t seq) const { return sequences[(size_t) seq]; }

    // Bytes of a pair that waits.
    size_t n_pair_bytes() const { return width * sizeof(float); }

  private:
    void    add_row(int32_t seq, llama_token token, llama_pos pos, float * hidden, bool output);
    int32_t add_next(int32_t seq);
    void    compute(int32_t seq, size_t n, draft_counts & counts);
    void    run(int32_t n_chained, draft_counts & counts);
    bool    level(const std::vector<int32_t> & left, int32_t n, draft_counts & counts);
    void    launch(const std::vector<int32_t> & left, int32_t n, draft_counts & counts);
    void    launch_step(const std::vector<int32_t> & left, draft_counts & counts);
    void    pick(int32_t row, int32_t seq);
    void    use_picks(const std::vector<int32_t> & left);
    const float * logits_of(int32_t row) const;
    void    append(sequence & s, llama_token token, float prob) const;
    void    keep_state(int32_t row, sequence & s) const;
    void    keep_newest(sequence & s) const;

    const model_files &   files;
    llama_context * const ctx;
    common_batch          batch;
    const size_t          width;   // floats of a hidden state
    const int32_t         n_vocab;
    std::vector<sequence> sequences;
    std::vector<draft_pick> picks; // one for each sequence; the context reads them
    std::vector<int32_t>  rows; // of the batch, from which each sequence's next draft is read; -1: none
    std::vector<float>    no_state; // of rows whose state the device puts in
    std::string           stepwise;
};

} // namespace lucebox
