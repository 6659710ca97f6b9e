// The engine's drafter in the server: what the target decoded becomes pairs for the MTP block, and slots draft together.
#pragma once

#include "mtp_drafter.h"
#include "mtp_writer.h"

#include "speculative-drafter.h"

#include <memory>
#include <string>
#include <vector>

namespace lucebox {

// The server decodes drafts before it knows which of them hold, and goes back to an earlier place of a text without a
// word. So the rows of a decode are only kept, and count when the text goes on: those in front of the place where it does
// are true. Pairs that a decode completes wait for the next draft. Those of a prompt are written in the model's own graph
// while it decodes them, or, where that cannot be had, computed by the block right afterwards.
//
// A reply without drafts is not followed: the model's graph is then that without the block. What is lost (such a reply, a
// slot's text from a file, images) is not made up for: the block's text then begins where the slot goes on. Whatever fails
// in here costs drafts, never a reply.
class server_drafter final : public common_speculative_drafter {
  public:
    // Whether this build's drafts share the noise of samplers that have such.
#ifdef LUCEBOX_SERVER_COUPLES
    static constexpr bool COUPLES = true;
#else
    static constexpr bool COUPLES = false;
#endif

    // Both contexts outlive the drafter. `n_max`: most drafts of a pass.
    server_drafter(llama_context * trunk, llama_context * mtp, uint32_t n_seq, int32_t n_max, bool chained);

#ifdef COMMON_SPECULATIVE_PREPARE
    void follow(llama_seq_id seq, bool has_drafts) override;
    void prepare(const common_batch & batch) override;
#else // of a prefix of the series: nobody calls them
    void follow(llama_seq_id seq, bool has_drafts);
    void prepare(const common_batch & batch);
#endif
    bool process(const common_batch & batch) override;
    void draft(std::vector<common_speculative_draft_params> & dparams) override;
    void get_state(llama_seq_id seq, std::vector<uint8_t> & data) override;
    void set_state(llama_seq_id seq, const std::vector<uint8_t> & data) override;

    // Why each draft has a launch of its own; empty if not.
    const std::string & why_stepwise() const { return drafter.why_stepwise(); }

    // Why the block reads prompts in a pass of its own; empty if not.
    const std::string & why_no_writer() const { return no_writer; }

    // Forgets everything, as at the start.
    void clear();

  private:
    struct text {
        std::vector<llama_token> tokens; // rows of the last decode, which need not all hold
        std::vector<float>       hidden;
        llama_pos                first   = 0;                // position of the first of them
        llama_pos                begin   = 0;                // where the block's text begins
        llama_token              follows = LLAMA_TOKEN_NULL; // token of the newest pair
        bool                     lost    = false;            // what comes next begins a new text for the block
    };

    void          go_on(llama_seq_id seq, llama_pos pos, llama_token token);
    const float * hidden_of(const text & t, llama_pos pos) const;
    bool          is_prompt(const common_batch & batch) const;
    void          keep(llama_seq_id seq, const common_batch & batch, int32_t row, int32_t n_rows);
    void          keep_written(llama_seq_id seq, const common_batch & batch);
    void          make_drafts(std::vector<common_speculative_draft_params> & dparams);
    void          survive(const char * what, const std::exception & e);

    llama_context * const trunk;
    const int32_t         n_max;
    const size_t          width; // floats of a hidden state
    const model_files     no_files;
    mtp_drafter           drafter;
    const std::vector<float> no_state; // zeros
    std::vector<text>     texts;
    std::vector<bool>     followed; // texts that may have drafts

    std::string                 no_writer;
    std::unique_ptr<mtp_writer> writer;
    llama_seq_id                written = -1; // whose prompt is being decoded and written for, or -1
    int32_t               n_failures = 0; // in a row
};

} // namespace lucebox
