#include "server_sweep.h"

#include "ggml.h"

#include <algorithm>
#include <cstdio>

namespace lucebox {

namespace {

constexpr int32_t N_PAST  = 128; // context length to measure at, as the engine's sweep has it
constexpr int32_t PASSES  = 5;   // of each width; the least time counts: what else the machine does only adds
constexpr int64_t ENOUGH_US = 2500000;  // after that no further width is begun again
constexpr int64_t LIMIT_US  = 30000000; // after that nothing is known

// Widest first, then from both ends: what a sweep that is cut short lacks lies between widths that were timed.
constexpr int32_t ORDER[] = { 8, 1, 4, 2, 6, 3, 5, 7 };

class sweep {
  public:
    sweep(llama_context * trunk, server_drafter & drafter, int32_t n_past) :
        trunk(trunk),
        drafter(drafter),
        n_past(n_past),
        began(ggml_time_us()),
        batch(trunk),
        params(llama_n_seq_max(trunk)) {}

    void run(lucebox_server_costs & out) {
        const double per_prompt = prompt_costs();
        for (const int32_t n : ORDER) {
            step(n, nullptr); // builds the graphs
        }
        for (const int32_t n : ORDER) {
            if (ggml_time_us() - began > ENOUGH_US && out.verify_us[n - 1] > 0) {
                break;
            }
            for (int32_t i = 0; i < (ggml_time_us() - began > ENOUGH_US ? 1 : PASSES); ++i) {
                step(n, &out);
            }
        }
        for (int32_t i = 1; i < LUCEBOX_SERVER_MAX_DRAFT; ++i) {
            out.draft_us[i] = std::max(out.draft_us[i], out.draft_us[i - 1]); // a longer chain costs no less
        }
        out.mtp_prefill_us_per_token = per_prompt / n_past;
        out.n_past                   = n_past;
    }

  private:
    void decode() {
        if (ggml_time_us() - began > LIMIT_US) {
            fail(LUCEBOX_ERR_CANCELLED, "it takes more than %d s", (int) (LIMIT_US / 1000000));
        }
        const int32_t status = llama_process(trunk, LLAMA_PROCESS_TYPE_DECODE, batch.get());
        if (status != 0) {
            fail(LUCEBOX_ERR_DECODE, "the model failed on a batch of %d rows (status %d)", batch.size(), (int) status);
        }
        llama_synchronize(trunk);
    }

    static llama_token token_at(llama_pos pos) { return 1 + (pos * 37) % 97; } // need different experts, as a text does

    // What a prompt takes longer because the MTP block follows it, in microseconds.
    double prompt_costs() {
        double least[2] = {};
        for (int32_t i = 0; i < 8; ++i) { // both kinds in turn, of which the first warm up
            double &     known = least[i % 2];
            const double took  = (double) prompt(/*followed=*/i % 2 == 1);
            known              = i < 4 ? took : std::min(known, took);
        }
        return std::max(0.0, least[1] - least[0]);
    }

    // Decodes a prompt on its own; returns the time in microseconds. The block ends up where the prompt does if it follows.
    int64_t prompt(bool followed) {
        llama_memory_clear(llama_get_memory(trunk), true);
        drafter.clear();
        const int64_t start = ggml_time_us();
        pos                 = 0;
        while (pos < n_past) {
            batch.clear();
            for (const llama_pos end = std::min(n_past, pos + (int32_t) llama_n_batch(trunk)); pos < end; ++pos) {
                batch.add(token_at(pos), pos, 0, pos + 1 == n_past);
            }
            if (followed) {
                drafter.prepare(batch);
            }
            decode();
            if (followed) {
                drafter.process(batch);
            }
        }
        return ggml_time_us() - start;
    }

    // A pass of which the first token holds and no draft does.
    void step(int32_t n_rows, lucebox_server_costs * out) {
        const llama_token first = token_at(pos);
        llama_tokens      drafts;
        const int64_t     start = ggml_time_us();
        if (n_rows > 1) {
            params[0]          = {};
            params[0].drafting = true;
            params[0].n_max    = n_rows - 1;
            params[0].pos0     = pos;
            params[0].id_last  = first;
            params[0].result   = &drafts;
            drafter.draft(params);
            params[0].drafting = false;
            if ((int32_t) drafts.size() != n_rows - 1) {
                fail(LUCEBOX_ERR_DECODE, "%zu of %d drafts were made", drafts.size(), n_rows - 1);
            }
        }
        const int64_t drafted = ggml_time_us();
        batch.clear();
        batch.add(first, pos, 0, true);
        for (int32_t i = 1; i < n_rows; ++i) {
            batch.add(drafts[(size_t) (i - 1)], pos + i, 0, true);
        }
        drafter.prepare(batch);
        decode();
        drafter.process(batch);
        const int64_t verified = ggml_time_us();
        pos += 1;
        if (n_rows > 1 && !llama_memory_seq_rm(llama_get_memory(trunk), 0, pos, -1)) {
            fail(LUCEBOX_ERR_ROLLBACK, "the model cannot take back %d tokens", n_rows - 1);
        }
        const int64_t done = ggml_time_us();
        if (out != nullptr) {
            const auto least = [](double & known, int64_t us) {
                const double found = (double) std::max<int64_t>(1, us);
                known              = known > 0 ? std::min(known, found) : found;
            };
            least(out->verify_us[n_rows - 1], verified - drafted);
            if (n_rows > 1) {
                least(out->draft_us[n_rows - 2], drafted - start);
                least(out->reject_us, done - verified);
            }
        }
    }

    llama_context * const trunk;
    server_drafter &      drafter;
    const int32_t         n_past;
    const int64_t         began;
    common_batch          batch;
    llama_pos             pos = 0;

    std::vector<common_speculative_draft_params> params;
};

} // namespace

void measure_costs(llama_context * trunk, server_drafter & drafter, lucebox_server_costs & out) {
    out                  = {};
    const int32_t n_past = std::min<int32_t>(N_PAST, (int32_t) llama_n_ctx_seq(trunk) - 8 * (PASSES + 2) - LUCEBOX_MAX_WIDTH);
    try {
        if (n_past < 4) {
            fail(LUCEBOX_ERR_ARGUMENT, "the context is too short");
        }
        sweep(trunk, drafter, n_past).run(out);
    } catch (const std::exception & e) {
        out = {};
        std::fprintf(stderr, "lucebox: the costs of widths could not be measured: %s\n", e.what());
    }
    llama_memory_clear(llama_get_memory(trunk), true);
    llama_perf_context_reset(trunk);
    drafter.clear();
}

} // namespace lucebox
