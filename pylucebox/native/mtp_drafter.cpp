#include "mtp_drafter.h"

#include "graphs.h"

#include "llama-ext.h"
#ifdef LUCEBOX_MTP_CHAIN
#    include "mtp_chain.h"
#endif

namespace lucebox {

// A first draft step takes along up to this many pairs that waited; more are computed before it.
static const size_t MAX_WAITING = 2 * LUCEBOX_MAX_WIDTH;

int32_t hidden_width(const llama_model * model) {
    // not llama_model_n_embd_out: that is the width of an embedding, which upstream gives as all streams and the patch
    // series as one
    char arch[64];
    char n_streams[16];
    if (llama_model_meta_val_str(model, "general.architecture", arch, sizeof(arch)) < 0 ||
        llama_model_meta_val_str(model, (std::string(arch) + ".hyper_connection.count").c_str(), n_streams,
                                 sizeof(n_streams)) < 0) {
        return llama_model_n_embd_out(model);
    }
    return llama_model_n_embd(model) * std::atoi(n_streams);
}

#ifdef LUCEBOX_MTP_CHAIN
static void set_chain(llama_context * ctx, int32_t n) {
    llama_set_mtp_chain(ctx, n);
}

static const float * drafts_of(llama_context * ctx, llama_seq_id seq) {
    return llama_get_mtp_chain(ctx, seq);
}

// The first part of a graph is the host's own where the embeddings are on the host; what is beyond it and the
// device's part is a passage in between.
static int32_t n_waits_inside(const llama_context * ctx) {
    return std::max(0, llama_n_graph_splits(ctx) - 2);
}
#else
// built from a llama.cpp without the hook
static const char * why_no_mtp_chain(const llama_context *) {
    return "this build's llama.cpp has no graph for it";
}

static void set_chain(llama_context *, int32_t) {}

static int32_t n_waits_inside(const llama_context *) {
    return 0;
}

static const float * drafts_of(llama_context *, llama_seq_id) {
    return nullptr;
}
#endif

#ifdef LUCEBOX_COUPLED_DRAFTS
static void set_picks(llama_context * ctx, const draft_pick * picks) {
    llama_set_mtp_picks(ctx, picks);
}

static picked pick_from(const draft_pick & how, int64_t position, const float * logits, int32_t n) {
    return pick_draft(how, position, logits, nullptr, n);
}
#else
static void set_picks(llama_context *, const draft_pick *) {}

static picked pick_from(const draft_pick &, int64_t, const float * logits, int32_t n) {
    return pick_likeliest(logits, n);
}
#endif

mtp_drafter::mtp_drafter(llama_context * context, uint32_t n_seq, const model_files & files, bool chained) :
    files(files),
    ctx(context),
    batch(ctx),
    width((size_t) hidden_width(llama_get_model(ctx))),
    n_vocab(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)))),
    sequences(n_seq),
    picks(n_seq),
    no_state(width),
    stepwise(chained ? why_no_mtp_chain(ctx) : "draft_chain is off") {
    // only the rows that a chain goes on from are read back
    llama_set_embeddings_nextn(ctx, true, /*masked=*/true);
}

void mtp_drafter::clear(int32_t seq) {
    llama_memory_seq_rm(llama_get_memory(ctx), seq, -1, -1);
    sequences[(size_t) seq] = {};
    picks[(size_t) seq]     = {};
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

void mtp_drafter::run(int32_t n_chained, draft_counts & counts) {
    files.require_unchanged();
    set_chain(ctx, n_chained);
    const build_watch watch(ctx);
    const log_capture capture;
    const int32_t status = llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, batch.get());
    if (status == 2) {
        fail(LUCEBOX_ERR_CANCELLED, "drafting was cancelled");
    }
    if (status != 0) {
        const std::string cause = capture.text_or("no reason was logged");
        fail(tells_of_memory(cause) ? LUCEBOX_ERR_MEMORY : LUCEBOX_ERR_DECODE,
             "the MTP block failed on a batch of %d rows (status %d): %s", batch.size(), status, cause.c_str());
    }
    llama_synchronize(ctx);
    counts.n_rows += batch.size();
    counts.n_steps += 1;
    counts.n_waits += 1 + n_waits_inside(ctx);
    counts.graph_built |= watch.has_built();
}

void mtp_drafter::catch_up(int32_t seq, draft_counts & counts) {
    sequence & s = sequences[(size_t) seq];
    if (s.tokens.size() > 1) {
        compute(seq, s.tokens.size() - 1, counts);
        keep_newest(s);
    }
}

void mtp_drafter::catch_up_wholly(int32_t seq, draft_counts & counts) {
    compute(seq, sequences[(size_t) seq].tokens.size(), counts);
    forget_waiting(seq);
}

// Computes the oldest `n` pairs that wait.
void mtp_drafter::compute(int32_t seq, size_t n, draft_counts & counts) {
    sequence &   s     = sequences[(size_t) seq];
    const size_t chunk = llama_n_ubatch(ctx);
    for (size_t begin = 0; begin < n; begin += chunk) {
        batch.clear();
        for (size_t i = begin; i < std::min(n, begin + chunk); ++i) {
            add_row(seq, s.tokens[i], s.positions[i], s.hidden.data() + i * width, false);
        }
        run(0, counts);
    }
}

void mtp_drafter::keep_newest(sequence & s) const {
    s.tokens    = { s.tokens.back() };
    s.positions = { s.positions.back() };
    s.hidden.erase(s.hidden.begin(), s.hidden.end() - (ptrdiff_t) width);
}

void mtp_drafter::append(sequence & s, llama_token token, float prob) const {
    if (s.chain.n_drafted == 0) {
        keep_newest(s); // those before it were computed along with it
    }
    s.chain.tokens[s.chain.n_drafted] = token;
    s.chain.probs[s.chain.n_drafted]  = prob;
    s.chain.n_drafted += 1;
}

void mtp_drafter::keep_state(int32_t row, sequence & s) const {
    const float * hidden = llama_get_embeddings_nextn_ith(ctx, row);
    if (hidden == nullptr) {
        fail(LUCEBOX_ERR_INTERNAL, "the MTP block gave no state for row %d", row);
    }
    s.chain_hidden.assign(hidden, hidden + width);
}

const float * mtp_drafter::logits_of(int32_t row) const {
    const float * logits = llama_get_logits_ith(ctx, row);
    if (logits == nullptr) {
        fail(LUCEBOX_ERR_INTERNAL, "the MTP block gave no logits for row %d", row);
    }
    return logits;
}

void mtp_drafter::pick(int32_t row, int32_t seq) {
    sequence &    s      = sequences[(size_t) seq];
    const float * logits = logits_of(row);
    // the newest pair is at the place of its state, its token one further, the first draft two
    const int64_t position = s.positions.back() + 2 + s.chain.n_drafted;
    const picked  found    = pick_from(picks[(size_t) seq], position, logits, n_vocab);
    append(s, found.row, found.prob);
    keep_state(row, s);
}

void mtp_drafter::go_back_to(int32_t seq, llama_pos pos) {
    sequence & s = sequences[(size_t) seq];
    while (!s.positions.empty() && s.positions.back() >= pos) {
        s.tokens.pop_back();
        s.positions.pop_back();
        s.hidden.resize(s.hidden.size() - width);
    }
    forget_from(seq, pos);
}

llama_pos mtp_drafter::next_pos(int32_t seq) const {
    const sequence & s = sequences[(size_t) seq];
    return s.positions.empty() ? llama_memory_seq_pos_max(llama_get_memory(ctx), seq) + 1 : s.positions.back() + 1;
}

void mtp_drafter::forget_from(int32_t seq, llama_pos pos) {
    if (!llama_memory_seq_rm(llama_get_memory(ctx), seq, pos, -1)) {
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

// Whether `n` more drafts of those that want some fit into one launch. Its sequences need the same number of rows: where
// more pairs wait in one than in another, all but the newest are computed before.
bool mtp_drafter::level(const std::vector<int32_t> & left, int32_t n, draft_counts & counts) {
    size_t n_first = 0;
    bool   same    = true;
    size_t n_seqs  = 0;
    for (size_t seq = 0; seq < left.size(); ++seq) {
        if (left[seq] > 0) {
            const size_t n_rows = sequences[seq].chain.n_drafted > 0 ? 1 : sequences[seq].tokens.size();
            same                = same && (n_seqs == 0 || n_rows == n_first);
            n_first             = n_rows;
            n_seqs += 1;
        }
    }
    const size_t most = llama_n_ubatch(ctx);
    if (!same || n_seqs * (n_first + (size_t) n - 1) > most) {
        for (size_t seq = 0; seq < left.size(); ++seq) {
            if (left[seq] > 0) {
                catch_up((int32_t) seq, counts);
            }
        }
        n_first = 1;
    }
    return n_seqs * (n_first + (size_t) n - 1) <= most;
}

// Likeliest tokens, if all that draft want them, are picked by operations of the device's own.
void mtp_drafter::use_picks(const std::vector<int32_t> & left) {
    bool any = false;
    for (size_t seq = 0; seq < left.size(); ++seq) {
        any = any || (left[seq] > 0 && picks[seq].coupled);
    }
    set_picks(ctx, any ? picks.data() : nullptr);
}

// `n` drafts of each sequence that has some left.
void mtp_drafter::launch(const std::vector<int32_t> & left, int32_t n, draft_counts & counts) {
    batch.clear();
    rows.assign(left.size(), -1);
    for (size_t seq = 0; seq < left.size(); ++seq) {
        if (left[seq] > 0) {
            rows[seq]            = add_next((int32_t) seq);
            const llama_pos last = batch.tokens.back().pos[0];
            for (int32_t i = 1; i < n; ++i) {
                add_row((int32_t) seq, 0, last + i, no_state.data(), false);
            }
        }
    }
    use_picks(left);
    run(n, counts);
    for (size_t seq = 0; seq < left.size(); ++seq) {
        if (rows[seq] < 0) {
            continue;
        }
        const float * drafts = drafts_of(ctx, (llama_seq_id) seq);
        if (drafts == nullptr) {
            fail(LUCEBOX_ERR_INTERNAL, "the MTP block made no drafts for sequence %zu", seq);
        }
        for (int32_t i = 0; i < n; ++i) {
            append(sequences[seq], (llama_token) drafts[2 * i], drafts[2 * i + 1]);
        }
        keep_state(rows[seq], sequences[seq]);
    }
    set_chain(ctx, 0); // others may run the context too, as the server does to see what it can take back
}

// One draft, picked on the host, of each sequence that has some left.
void mtp_drafter::launch_step(const std::vector<int32_t> & left, draft_counts & counts) {
    batch.clear();
    rows.assign(left.size(), -1);
    for (size_t seq = 0; seq < left.size(); ++seq) {
        if (left[seq] > 0) {
            rows[seq] = add_next((int32_t) seq);
        }
    }
    run(0, counts);
    for (size_t seq = 0; seq < left.size(); ++seq) {
        if (rows[seq] >= 0) {
            pick(rows[seq], (int32_t) seq);
        }
    }
}

void mtp_drafter::first_logits(int32_t seq, float * logits) {
    draft_counts ignored;
    catch_up(seq, ignored);
    batch.clear();
    const int32_t row = add_next(seq);
    run(0, ignored);
    std::copy_n(logits_of(row), n_vocab, logits);
    pick(row, seq);
}

void mtp_drafter::extend(const std::vector<int32_t> & n_more, draft_counts & counts) {
    for (size_t seq = 0; seq < n_more.size(); ++seq) {
        if (n_more[seq] > 0 && sequences[seq].tokens.size() > MAX_WAITING) {
            catch_up((int32_t) seq, counts);
        }
    }
    for (std::vector<int32_t> left = n_more;;) {
        int32_t n = 0; // as many as all that want some want
        for (const int32_t wanted : left) {
            n = wanted > 0 && (n == 0 || wanted < n) ? wanted : n;
        }
        if (n == 0) {
            return;
        }
        if (stepwise.empty() && level(left, n, counts)) {
            launch(left, n, counts);
        } else {
            n = 1;
            launch_step(left, counts);
        }
        for (int32_t & wanted : left) {
            wanted = std::max(0, wanted - n);
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
