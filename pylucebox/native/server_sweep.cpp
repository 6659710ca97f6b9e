#include "server_sweep.h"

#include "even_drafts.h"

#include "ggml.h"
#include "llama-model.h"

#include <algorithm>
#include <cstdio>

namespace lucebox {

namespace {

constexpr int32_t N_PAST  = 128; // context length to measure at, as the engine's sweep has it
constexpr int32_t PASSES  = 5;   // of each width; the least time counts: what else the machine does only adds
constexpr int64_t ENOUGH_US = 2500000;  // after that no further width is begun again
constexpr int64_t LIMIT_US  = 30000000; // after that nothing is known

// Drafts of one slot. Widest first, then from both ends: what a sweep that is cut short lacks lies between widths that
// were timed.
constexpr int32_t ORDER[] = { 7, 0, 3, 1, 5, 2, 4, 6 };

class sweep {
  public:
    sweep(llama_context * trunk, server_drafter & drafter, int32_t n_past) :
        trunk(trunk),
        drafter(drafter),
        n_past(n_past),
        began(ggml_time_us()),
        batch(trunk),
        params(llama_n_seq_max(trunk)),
        ends(params.size(), 0),
        drafts(params.size()) {}

    // Passes of one slot.
    void run(lucebox_server_costs & out) {
        const double per_prompt = prompt_costs();
        for (const int32_t n : ORDER) {
            step(1, n, nullptr); // builds the graphs
        }
        for (const int32_t n : ORDER) {
            if (is_enough() && out.verify_us[n] > 0) {
                break;
            }
            for (int32_t i = 0; i < (is_enough() ? 1 : PASSES); ++i) {
                step(1, n, &out);
            }
        }
        finish(out);
        out.mtp_prefill_us_per_token = per_prompt / n_past;
    }

    // Passes of several slots that all draft the same number.
    void run_several(int32_t n_slots, lucebox_server_costs & out) {
        for (int32_t seq = 1; seq < n_slots; ++seq) {
            if (ends[(size_t) seq] == 0) {
                prompt(seq, std::min(N_FEW, n_past));
            }
        }
        for (int32_t n = MAX_PASS_ROWS / n_slots - 1; n >= 0; --n) {
            step(n_slots, n, nullptr);
            for (int32_t i = 0; i < PASSES; ++i) {
                step(n_slots, n, &out);
            }
        }
        finish(out);
    }

    bool is_enough() const { return ggml_time_us() - began > ENOUGH_US; }

  private:
    static constexpr int32_t N_FEW = 16; // tokens of the further slots' prompts

    void finish(lucebox_server_costs & out) const {
        for (int32_t i = 1; i < LUCEBOX_SERVER_MAX_DRAFT; ++i) {
            if (out.draft_us[i] > 0) {
                out.draft_us[i] = std::max(out.draft_us[i], out.draft_us[i - 1]); // a longer chain costs no less
            }
        }
        out.on_gpu = is_on_gpu(trunk);
        out.n_past = n_past;
    }

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
            llama_memory_clear(llama_get_memory(trunk), true);
            drafter.clear();
            drafter.follow(0, /*has_drafts=*/i % 2 == 1);
            double &     known = least[i % 2];
            const double took  = (double) prompt(0, n_past);
            known              = i < 4 ? took : std::min(known, took);
        }
        return std::max(0.0, least[1] - least[0]);
    }

    // Decodes a prompt on its own; returns the time in microseconds.
    int64_t prompt(llama_seq_id seq, int32_t n) {
        llama_pos &   pos   = ends[(size_t) seq];
        const int64_t start = ggml_time_us();
        for (pos = 0; pos < n;) {
            batch.clear();
            for (const llama_pos end = std::min(n, pos + (int32_t) llama_n_batch(trunk)); pos < end; ++pos) {
                batch.add(token_at(pos), pos, seq, pos + 1 == n);
            }
            drafter.prepare(batch);
            decode();
            drafter.process(batch);
        }
        return ggml_time_us() - start;
    }

    // A pass of which each slot's first token holds and no draft does.
    void step(int32_t n_slots, int32_t n_draft, lucebox_server_costs * out) {
        const int64_t start = ggml_time_us();
        if (n_draft > 0) {
            make_drafts(n_slots, n_draft);
        }
        const int64_t drafted = ggml_time_us();
        batch.clear();
        for (int32_t seq = 0; seq < n_slots; ++seq) {
            const llama_pos pos = ends[(size_t) seq];
            batch.add(token_at(pos), pos, seq, true);
            for (int32_t i = 0; i < n_draft; ++i) {
                batch.add(drafts[(size_t) seq][(size_t) i], pos + 1 + i, seq, true);
            }
        }
        drafter.prepare(batch);
        decode();
        drafter.process(batch);
        const int64_t verified = ggml_time_us();
        for (int32_t seq = 0; seq < n_slots; ++seq) {
            ends[(size_t) seq] += 1;
            if (n_draft > 0 && !llama_memory_seq_rm(llama_get_memory(trunk), seq, ends[(size_t) seq], -1)) {
                fail(LUCEBOX_ERR_ROLLBACK, "the model cannot take back %d tokens", n_draft);
            }
        }
        const int64_t done = ggml_time_us();
        if (out != nullptr) {
            const auto least = [](double & known, int64_t us) {
                const double found = (double) std::max<int64_t>(1, us);
                known              = known > 0 ? std::min(known, found) : found;
            };
            least(out->verify_us[n_slots * (n_draft + 1) - 1], verified - drafted);
            if (n_draft > 0) {
                least(out->draft_us[n_draft - 1], drafted - start);
                least(out->reject_us, done - verified);
            }
        }
    }

    void make_drafts(int32_t n_slots, int32_t n_draft) {
        for (int32_t seq = 0; seq < n_slots; ++seq) {
            auto & wanted   = params[(size_t) seq];
            wanted          = {};
            wanted.drafting = true;
            wanted.n_max    = n_draft;
            wanted.pos0     = ends[(size_t) seq];
            wanted.id_last  = token_at(wanted.pos0);
            wanted.result   = &drafts[(size_t) seq];
            wanted.result->clear();
        }
        drafter.draft(params);
        for (int32_t seq = 0; seq < n_slots; ++seq) {
            params[(size_t) seq].drafting = false;
            if ((int32_t) drafts[(size_t) seq].size() != n_draft) {
                fail(LUCEBOX_ERR_DECODE, "%zu of %d drafts were made", drafts[(size_t) seq].size(), n_draft);
            }
        }
    }

    llama_context * const trunk;
    server_drafter &      drafter;
    const int32_t         n_past;
    const int64_t         began;
    common_batch          batch;

    std::vector<common_speculative_draft_params> params; // one for each slot, as are these:
    std::vector<llama_pos>                       ends;
    std::vector<llama_tokens>                    drafts;
};

} // namespace

// The last layers are the first that go there.
bool is_on_gpu(const llama_context * trunk) {
    const llama_model *      model  = llama_get_model(trunk);
    const ggml_backend_dev_t device = model->dev_layer((int) model->hparams.n_layer() - 1);
    return ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU;
}

void measure_costs(llama_context * trunk, server_drafter & drafter, costs_by_slots & out) {
    out                  = {};
    const int32_t n_past = std::min<int32_t>(N_PAST, (int32_t) llama_n_ctx_seq(trunk) - 16 * (PASSES + 2) - LUCEBOX_MAX_WIDTH);
    size_t        n_done = 0; // numbers of slots
    try {
        if (n_past < 4) {
            fail(LUCEBOX_ERR_ARGUMENT, "the context is too short");
        }
        sweep all(trunk, drafter, n_past);
        all.run(out[0]);
        n_done = 1;
        while (n_done < std::min<size_t>(out.size(), llama_n_seq_max(trunk)) && !all.is_enough()) {
            all.run_several((int32_t) n_done + 1, out[n_done]);
            n_done += 1;
        }
    } catch (const std::exception & e) {
        std::fprintf(stderr, "lucebox: the costs of widths could not be measured: %s\n", e.what());
        std::fill(out.begin() + (ptrdiff_t) n_done, out.end(), lucebox_server_costs{});
    }
    llama_memory_clear(llama_get_memory(trunk), true);
    llama_perf_context_reset(trunk);
    drafter.clear();
}

} // namespace lucebox
