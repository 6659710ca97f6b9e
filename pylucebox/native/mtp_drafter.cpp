#include "mtp_drafter.h"

#include "llama-ext.h"

#include <cmath>

namespace lucebox {

mtp_drafter::mtp_drafter(llama_context_ptr context, uint32_t n_seq, const model_files & files) :
    files(files),
    ctx(std::move(context)),
    batch(ctx.get()),
    width((size_t) hidden_width(llama_get_model(ctx.get()))),
    n_vocab(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx.get())))),
    sequences(n_seq) {
    // only the rows that a chain goes on from are read back
    llama_set_embeddings_nextn(ctx.get(), true, /*masked=*/true);
}

void mtp_drafter::clear(int32_t seq) {
    llama_memory_seq_rm(llama_get_memory(ctx.get()), seq, -1, -1);
    sequences[(size_t) seq] = {};
}

void mtp_drafter::feed(int32_t seq, llama_token next, llama_pos pos, const float * hidden) {
    sequence & s = waiting(seq);
    s.tokens.push_back(next);
    s.positions.push_back(pos);
    s.hidden.insert(s.hidden.end(), hidden, hidden + width);
}

void mtp_drafter::force(int32_t seq, llama_token next) {
    if (!waiting(seq).tokens.empty()) {
        waiting(seq).tokens.back() = next;
    }
}

void mtp_drafter::add_row(int32_t seq, llama_token token, llama_pos pos, float * hidden, bool output) {
    const int32_t row = batch.add(token, pos, seq, output);
    batch.set_embd(row, { hidden, 1, width });
}

void mtp_drafter::run(draft_counts & counts) {
    files.require_unchanged();
    const int32_t reused = llama_perf_context(ctx.get()).n_reused;
    const log_capture capture;
    const int32_t status = llama_process(ctx.get(), LLAMA_PROCESS_TYPE_DECODE, batch.get());
    if (status == 2) {
        fail(LUCEBOX_ERR_CANCELLED, "drafting was cancelled");
    }
    if (status != 0) {
        const std::string cause = capture.text_or("no reason was logged");
        fail(tells_of_memory(cause) ? LUCEBOX_ERR_MEMORY : LUCEBOX_ERR_DECODE,
             "the MTP block failed on a batch of %d rows (status %d): %s", batch.size(), status, cause.c_str());
    }
    llama_synchronize(ctx.get());
    counts.n_rows += batch.size();
    counts.n_steps += 1;
    counts.graph_built |= llama_perf_context(ctx.get()).n_reused == reused;
}

void mtp_drafter::catch_up(int32_t seq, draft_counts & counts) {
    sequence & s = waiting(seq);
    if (s.tokens.size() < 2) {
        return;
    }
    const size_t n_old = s.tokens.size() - 1;
    const size_t chunk = llama_n_ubatch(ctx.get());
    for (size_t begin = 0; begin < n_old; begin += chunk) {
        batch.clear();
        for (size_t i = begin; i < std::min(n_old, begin + chunk); ++i) {
            add_row(seq, s.tokens[i], s.positions[i], s.hidden.data() + i * width, false);
        }
        run(counts);
    }
    s.tokens.erase(s.tokens.begin(), s.tokens.begin() + (ptrdiff_t) n_old);
    s.positions.erase(s.positions.begin(), s.positions.begin() + (ptrdiff_t) n_old);
    s.hidden.erase(s.hidden.begin(), s.hidden.begin() + (ptrdiff_t) (n_old * width));
}

// Greedy choice, and its softmax probability over all logits: 1 / sum(exp(logit - max)).
void mtp_drafter::pick(int32_t row, draft_chain & chain) const {
    const float * logits = llama_get_logits_ith(ctx.get(), row);
    if (logits == nullptr) {
        fail(LUCEBOX_ERR_INTERNAL, "the MTP block gave no logits for row %d", row);
    }
    const int32_t best = (int32_t) (std::max_element(logits, logits + n_vocab) - logits);
    float         sum  = 0.0f;
    for (int32_t i = 0; i < n_vocab; ++i) {
        sum += std::exp(logits[i] - logits[best]);
    }
    chain.tokens[chain.n_drafted] = best;
    chain.probs[chain.n_drafted]  = 1.0f / sum;
    chain.n_drafted += 1;
}

void mtp_drafter::forget_from(int32_t seq, llama_pos pos) {
    if (!llama_memory_seq_rm(llama_get_memory(ctx.get()), seq, pos, -1)) {
        fail(LUCEBOX_ERR_ROLLBACK, "the MTP cache of sequence %d cannot go back to position %d", seq, (int) pos);
    }
}

void mtp_drafter::draft(std::vector<draft_chain> & chains, bool keep, draft_counts & counts) {
    batch.clear();
    rows.assign(chains.size(), -1);
    chained.resize(chains.size() * width);
    for (size_t c = 0; c < chains.size(); ++c) {
        sequence & s        = waiting(chains[c].seq);
        chains[c].n_drafted = 0;
        for (size_t i = 0; i < s.tokens.size(); ++i) {
            add_row(chains[c].seq, s.tokens[i], s.positions[i], s.hidden.data() + i * width, i + 1 == s.tokens.size());
        }
        rows[c] = batch.size() - 1;
    }

    for (int32_t step = 1;; ++step) {
        run(counts);
        bool more = false;
        for (size_t c = 0; c < chains.size(); ++c) {
            if (rows[c] < 0) {
                continue;
            }
            pick(rows[c], chains[c]);
            if (chains[c].n_drafted < chains[c].n_wanted) {
                std::memcpy(chained.data() + c * width, llama_get_embeddings_nextn_ith(ctx.get(), rows[c]),
                            width * sizeof(float));
                more = true;
            } else {
                rows[c] = -1;
            }
        }
        if (!more) {
            break;
        }
        batch.clear();
        for (size_t c = 0; c < chains.size(); ++c) {
            if (rows[c] >= 0) {
                const llama_pos newest = waiting(chains[c].seq).positions.back();
                rows[c]                = batch.size();
                add_row(chains[c].seq, chains[c].tokens[chains[c].n_drafted - 1], newest + step,
                        chained.data() + c * width, true);
            }
        }
    }

    // rows past the newest pair came from the block's own state, not from the trunk's: they must not stay
    for (draft_chain & chain : chains) {
        sequence & s = waiting(chain.seq);
        if (keep) {
            if (chain.n_drafted > 1) {
                forget_from(chain.seq, s.positions.back() + 1);
            }
            s = {};
        } else {
            forget_from(chain.seq, s.positions.back());
            s = { { s.tokens.back() }, { s.positions.back() }, { s.hidden.end() - (ptrdiff_t) width, s.hidden.end() } };
        }
    }
}

} // namespace lucebox
