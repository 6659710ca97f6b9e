#include "mtp_drafter.h"

#include "graphs.h"

#include "llama-ext.h"

#include <cmath>

namespace lucebox {

// A first draft step takes along up to this many pairs that waited; more are computed before it.
static const size_t MAX_WAITING = 2 * LUCEBOX_MAX_WIDTH;

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
    sequence & s = sequences[(size_t) seq];
    s.tokens.push_back(next);
    s.positions.push_back(pos);
    s.hidden.insert(s.hidden.end(), hidden, hidden + width);
}

void mtp_drafter::forget_waiting(int32_t seq) {
    sequence & s = sequences[(size_t) seq];
    s.tokens.clear();
    s.positions.clear();
    s.hidden.clear();
}

void mtp_drafter::force(int32_t seq, llama_token next) {
    std::vector<llama_token> & tokens = sequences[(size_t) seq].tokens;
    if (!tokens.empty()) {
        tokens.back() = next;
    }
}

void mtp_drafter::add_row(int32_t seq, llama_token token, llama_pos pos, float * hidden, bool output) {
    const int32_t row = batch.add(token, pos, seq, output);
    batch.set_embd(row, { hidden, 1, width });
}

void mtp_drafter::run(draft_counts & counts) {
    files.require_unchanged();
    const build_watch watch(ctx.get());
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
    counts.graph_built |= watch.has_built();
}

void mtp_drafter::catch_up(int32_t seq, draft_counts & counts) {
    sequence & s = sequences[(size_t) seq];
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
    keep_newest(s);
}

void mtp_drafter::keep_newest(sequence & s) const {
    s.tokens    = { s.tokens.back() };
    s.positions = { s.positions.back() };
    s.hidden.erase(s.hidden.begin(), s.hidden.end() - (ptrdiff_t) width);
}

// Greedy choice, and its softmax probability over all logits: 1 / sum(exp(logit - max)).
void mtp_drafter::pick(int32_t row, sequence & s) const {
    const float * logits = llama_get_logits_ith(ctx.get(), row);
    const float * hidden = llama_get_embeddings_nextn_ith(ctx.get(), row);
    if (logits == nullptr || hidden == nullptr) {
        fail(LUCEBOX_ERR_INTERNAL, "the MTP block gave no logits or no state for row %d", row);
    }
    const int32_t best = (int32_t) (std::max_element(logits, logits + n_vocab) - logits);
    float         sum  = 0.0f;
    for (int32_t i = 0; i < n_vocab; ++i) {
        sum += std::exp(logits[i] - logits[best]);
    }
    if (s.chain.n_drafted == 0) {
        keep_newest(s); // those before it were computed along with it
    }
    s.chain.tokens[s.chain.n_drafted] = best;
    s.chain.probs[s.chain.n_drafted]  = 1.0f / sum;
    s.chain.n_drafted += 1;
    s.chain_hidden.assign(hidden, hidden + width);
}

void mtp_drafter::forget_from(int32_t seq, llama_pos pos) {
    if (!llama_memory_seq_rm(llama_get_memory(ctx.get()), seq, pos, -1)) {
        fail(LUCEBOX_ERR_ROLLBACK, "the MTP cache of sequence %d cannot go back to position %d", seq, (int) pos);
    }
}

// Adds what the next draft of a sequence is read from, and returns its row.
int32_t mtp_drafter::add_next(int32_t seq) {
    sequence & s = sequences[(size_t) seq];
    if (s.chain.n_drafted > 0) {
        add_row(seq, s.chain.tokens[s.chain.n_drafted - 1], s.positions.back() + s.chain.n_drafted,
                s.chain_hidden.data(), true);
    } else {
        for (size_t i = 0; i < s.tokens.size(); ++i) {
            add_row(seq, s.tokens[i], s.positions[i], s.hidden.data() + i * width, i + 1 == s.tokens.size());
        }
    }
    return batch.size() - 1;
}

void mtp_drafter::extend(const std::vector<int32_t> & n_more, draft_counts & counts) {
    int32_t n_steps = 0;
    for (size_t seq = 0; seq < n_more.size(); ++seq) {
        n_steps = std::max(n_steps, n_more[seq]);
        if (n_more[seq] > 0 && sequences[seq].tokens.size() > MAX_WAITING) {
            catch_up((int32_t) seq, counts);
        }
    }
    for (int32_t step = 0; step < n_steps; ++step) {
        batch.clear();
        rows.assign(n_more.size(), -1);
        for (size_t seq = 0; seq < n_more.size(); ++seq) {
            if (step < n_more[seq]) {
                rows[seq] = add_next((int32_t) seq);
            }
        }
        run(counts);
        for (size_t seq = 0; seq < n_more.size(); ++seq) {
            if (rows[seq] >= 0) {
                pick(rows[seq], sequences[seq]);
            }
        }
    }
}

void mtp_drafter::settle(int32_t seq) {
    sequence & s = sequences[(size_t) seq];
    if (s.chain.n_drafted > 1) {
        forget_from(seq, s.positions.back() + 1);
    }
    if (s.chain.n_drafted > 0) {
        s.chain.n_drafted = 0;
        forget_waiting(seq);
    }
}

void mtp_drafter::drop(int32_t seq) {
    sequence & s = sequences[(size_t) seq];
    if (s.chain.n_drafted > 0) {
        forget_from(seq, s.positions.back());
        s.chain.n_drafted = 0;
    }
}

} // namespace lucebox
