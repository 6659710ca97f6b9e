// Drafts with the model's MTP block, one chain per sequence, all sequences of a step together.
//
// The block reads pairs: the trunk's state after position p and the token at p + 1. A pair is computed once, in
// the cache of the block, at position p, as the reference implementation places it. Pairs that the trunk has
// produced but no draft has needed yet wait here; the next draft runs them in the launch of its first step, so
// catching up costs no launch of its own, and rejected rows are never computed.
#pragma once

#include "internal.h"

#include <vector>

namespace lucebox {

struct draft_chain {
    int32_t seq      = 0;
    int32_t n_wanted = 0; // 1..LUCEBOX_MAX_DRAFT
    int32_t n_drafted = 0;
    int32_t tokens[LUCEBOX_MAX_DRAFT];
    float   probs[LUCEBOX_MAX_DRAFT]; // top-1 probability over the whole draft vocabulary
};

struct draft_counts {
    int32_t n_rows      = 0;
    int32_t n_steps     = 0;
    bool    graph_built = false;
};

class mtp_drafter {
  public:
    // `context` was made with LLAMA_CONTEXT_TYPE_MTP.
    mtp_drafter(llama_context_ptr context, uint32_t n_seq, const model_files & files);

    void clear(int32_t seq);

    // The trunk's state `hidden` after position `pos`, and the token that follows it.
    void feed(int32_t seq, llama_token next, llama_pos pos, const float * hidden);

    // Replace the token of the newest pair, which has not been computed.
    void force(int32_t seq, llama_token next);

    // Computes all pairs that wait but the newest.
    void catch_up(int32_t seq, draft_counts & counts);

    // Fills in the chains. With `keep` the newest pair of each counts as computed; otherwise it waits again.
    void draft(std::vector<draft_chain> & chains, bool keep, draft_counts & counts);

    llama_context * context() const { return ctx.get(); }

    struct sequence {
        std::vector<llama_token> tokens; // pairs that wait, oldest first
        std::vector<llama_pos>   positions;
        std::vector<float>       hidden;
    };

    sequence &       waiting(int32_t seq) { return sequences[(size_t) seq]; }
    const sequence & waiting(int32_t seq) const { return sequences[(size_t) seq]; }

  private:
    void add_row(int32_t seq, llama_token token, llama_pos pos, float * hidden, bool output);
    void run(draft_counts & counts);
    void pick(int32_t row, draft_chain & chain) const;
    void forget_from(int32_t seq, llama_pos pos);

    const model_files &   files;
    llama_context_ptr     ctx;
    common_batch          batch;
    const size_t          width;   // floats of a hidden state
    const int32_t         n_vocab;
    std::vector<sequence> sequences;
    std::vector<int32_t>  rows;    // batch row of each chain's newest token
    std::vector<float>    chained; // hidden states that the chains feed back
};

} // namespace lucebox
