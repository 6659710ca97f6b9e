#include "server_drafts.h"

#include "llama-ext.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace lucebox {

static const int32_t MOST_FAILURES = 8; // in a row, after which nothing is drafted any more

template <typename T> static void add_bytes(std::vector<uint8_t> & data, const T * from, size_t n) {
    data.insert(data.end(), (const uint8_t *) from, (const uint8_t *) (from + n));
}

template <typename T> static void take_bytes(const uint8_t *& from, T * to, size_t n) {
    std::memcpy(to, from, n * sizeof(T));
    from += n * sizeof(T);
}

// How drafts foresee the draws of a slot.
static draft_pick pick_for(const common_speculative_draft_params & params) {
    draft_pick pick;
#ifdef LUCEBOX_SERVER_COUPLES
    if (params.sampling && params.smpl) {
        pick       = pick_of(*params.sampling, params.smpl);
        pick.shift = (int32_t) params.prompt->size() - params.pos0;
    }
#else
    (void) params; // built from a llama.cpp without the hook
#endif
    return pick;
}

server_drafter::server_drafter(llama_context * trunk, llama_context * mtp, uint32_t n_seq, int32_t n_max, bool chained) :
    trunk(trunk),
    n_max(std::min(n_max, LUCEBOX_MAX_DRAFT)),
    width((size_t) hidden_width(llama_get_model(trunk))),
    drafter(mtp, n_seq, no_files, chained),
    no_state(width),
    texts(n_seq),
    followed(n_seq, true) {
    // where the model's graph writes, the states of a prompt stay on the device, but for the last
    llama_set_embeddings_nextn(trunk, true, /*masked=*/true);
#ifdef COMMON_SPECULATIVE_PREPARE
    writer = make_mtp_writer(trunk, mtp, no_writer);
#else
    no_writer = "this build's llama.cpp does not tell of a batch before it is decoded";
#endif
    if (!writer) {
        llama_set_embeddings_nextn(trunk, true, /*masked=*/false);
        return;
    }
    for (uint32_t seq = 0; seq < n_seq; ++seq) {
        writer->enable((llama_seq_id) seq, true);
        writer->defer((llama_seq_id) seq, true);
    }
}

void server_drafter::clear() {
    for (size_t seq = 0; seq < texts.size(); ++seq) {
        drafter.clear((int32_t) seq);
        texts[seq] = {};
    }
}

const float * server_drafter::hidden_of(const text & t, llama_pos pos) const {
    const bool here = pos >= t.first && pos < t.first + (llama_pos) t.tokens.size();
    return here ? t.hidden.data() + (size_t) (pos - t.first) * width : nullptr;
}

// The text of a sequence goes on with `token` at `pos`: what was decoded in front of it is true, the rest is not.
void server_drafter::go_on(llama_seq_id seq, llama_pos pos, llama_token token) {
    text & t = texts[(size_t) seq];
    if (pos == 0) {
        drafter.clear(seq);
        t = {};
        return;
    }
    llama_pos next = std::max(drafter.next_pos(seq), t.begin);
    if (!t.lost && next == pos && t.follows == token) {
        return; // drafts were made from it
    }
    if (next >= pos) {
        next = pos - 1;
        drafter.go_back_to(seq, next);
        t.begin = std::min(t.begin, next);
    }
    if (t.lost || hidden_of(t, next) == nullptr || hidden_of(t, pos - 1) == nullptr) {
        drafter.clear(seq);
        t       = {};
        t.begin = pos;
        return;
    }
    for (; next < pos; ++next) {
        const llama_token after = next + 1 < pos ? t.tokens[(size_t) (next + 1 - t.first)] : token;
        drafter.feed(seq, after, next, hidden_of(t, next));
    }
    t.follows = token;
}

// Whether a batch is part of one prompt: more rows than a pass can verify, or rows that nobody samples from.
bool server_drafter::is_prompt(const common_batch & batch) const {
    const auto & rows = batch.tokens;
    if (!batch.has_token() || batch.has_embd()) {
        return false;
    }
    bool silent = false;
    for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i].seq_id != rows[0].seq_id || rows[i].pos[0] != rows[0].pos[0] + (llama_pos) i ||
            !rows[i].seq_ids_extra.empty()) {
            return false;
        }
        silent = silent || !rows[i].output;
    }
    return silent || (int32_t) rows.size() > n_max + 1;
}

void server_drafter::prepare(const common_batch & batch) {
    if (!writer) {
        return;
    }
    if (written >= 0) { // that decode failed
        writer->defer(written, true);
        texts[(size_t) written].lost = true;
        written                      = -1;
    }
    if (n_failures >= MOST_FAILURES || !is_prompt(batch)) {
        return;
    }
    const llama_seq_id seq = batch.tokens[0].seq_id;
    if (!followed.at((size_t) seq)) {
        return;
    }
    const llama_pos    pos = batch.tokens[0].pos[0];
    try {
        go_on(seq, pos, batch.tokens[0].id);
        if (pos > 0) {
            // The pair that the first row completes is written as well. Zeros stand for a state that is not known.
            const float *            known = hidden_of(texts[(size_t) seq], pos - 1);
            const std::vector<float> hidden(known ? known : no_state.data(), (known ? known : no_state.data()) + width);
            draft_counts             ignored;
            drafter.catch_up(seq, ignored);
            drafter.forget_waiting(seq);
            drafter.forget_from(seq, pos - 1);
            writer->set_hidden(seq, pos - 1, hidden.data());
        }
        writer->defer(seq, false);
        written = seq;
    } catch (const std::exception & e) {
        survive("the MTP block cannot follow the text", e);
    }
}

// Takes note of a prompt that the model's graph wrote for.
void server_drafter::keep_written(llama_seq_id seq, const common_batch & batch) {
    const auto & last = batch.tokens.back();
    text &       t    = texts[(size_t) seq];
    t.first           = last.pos[0];
    t.tokens          = { last.id };
    t.follows         = last.id;
    t.hidden.resize(width);
    if (!writer->get_hidden(seq, t.first, t.hidden.data())) {
        fail(LUCEBOX_ERR_INTERNAL, "the state after position %d was not kept", (int) t.first);
    }
}

// Takes note of rows that were decoded for a sequence. More of them than a pass can verify are those of a prompt.
void server_drafter::keep(llama_seq_id seq, const common_batch & batch, int32_t row, int32_t n_rows) {
    const auto & rows  = batch.tokens;
    const auto   state = [&](int32_t i) {
        const float * hidden = llama_get_embeddings_nextn_ith(trunk, row + i);
        if (hidden == nullptr) {
            fail(LUCEBOX_ERR_INTERNAL, "the model gave no state for row %d", row + i);
        }
        return hidden;
    };
    go_on(seq, rows[(size_t) row].pos[0], rows[(size_t) row].id);

    text &  t    = texts[(size_t) seq];
    int32_t kept = 0; // first row to keep
    if (n_rows > n_max + 1) {
        for (kept = 0; kept + 1 < n_rows; ++kept) {
            drafter.feed(seq, rows[(size_t) (row + kept + 1)].id, rows[(size_t) (row + kept)].pos[0], state(kept));
        }
        t.follows = rows[(size_t) (row + kept)].id;
    }
    t.first = rows[(size_t) (row + kept)].pos[0];
    t.tokens.clear();
    t.hidden.clear();
    for (int32_t i = kept; i < n_rows; ++i) {
        const float * hidden = state(i);
        t.tokens.push_back(rows[(size_t) (row + i)].id);
        t.hidden.insert(t.hidden.end(), hidden, hidden + width);
    }
    // a slot that does not draft lets pairs pile up: they cost least in one wide batch, and nothing if it stays so
    if (kept > 0 || drafter.waiting(seq).tokens.size() > llama_n_ubatch(drafter.context())) {
        draft_counts ignored;
        drafter.catch_up_wholly(seq, ignored);
    }
}

bool server_drafter::process(const common_batch & batch) {
    if (n_failures >= MOST_FAILURES) {
        return true;
    }
    const auto & rows = batch.tokens;
    try {
        if (written >= 0) {
            const llama_seq_id seq = std::exchange(written, -1);
            writer->defer(seq, true);
            keep_written(seq, batch);
            return true;
        }
        for (size_t begin = 0; begin < rows.size();) {
            const llama_seq_id seq = rows[begin].seq_id;
            size_t             end = begin + 1;
            while (end < rows.size() && rows[end].seq_id == seq && rows[end].pos[0] == rows[end - 1].pos[0] + 1) {
                ++end;
            }
            if (!batch.has_token() || batch.has_embd()) {
                texts.at((size_t) seq).lost = true; // no tokens, hence no pairs
            } else if (followed.at((size_t) seq)) {
                keep(seq, batch, (int32_t) begin, (int32_t) (end - begin));
            }
            begin = end;
        }
    } catch (const std::exception & e) {
        survive("the MTP block cannot follow the text", e);
    }
    return true;
}

void server_drafter::follow(llama_seq_id seq, bool has_drafts) {
    try {
        if (writer && followed.at((size_t) seq) != has_drafts) {
            writer->enable(seq, has_drafts);
            writer->defer(seq, has_drafts);
        }
        followed.at((size_t) seq) = has_drafts;
        if (!has_drafts) {
            drafter.clear(seq);
            texts[(size_t) seq]      = {};
            texts[(size_t) seq].lost = true;
        }
    } catch (const std::exception & e) {
        survive("the MTP block cannot forget a text", e);
    }
}

void server_drafter::draft(std::vector<common_speculative_draft_params> & dparams) {
    if (n_failures >= MOST_FAILURES) {
        return;
    }
    try {
        make_drafts(dparams);
        n_failures = 0;
    } catch (const std::exception & e) {
        for (auto & dp : dparams) {
            if (dp.drafting) {
                dp.result->clear();
                if (dp.result_p) {
                    dp.result_p->clear();
                }
            }
        }
        survive("no drafts for this pass", e);
    }
}

void server_drafter::make_drafts(std::vector<common_speculative_draft_params> & dparams) {
    std::vector<int32_t> n_more(texts.size(), 0);
    for (size_t seq = 0; seq < texts.size(); ++seq) {
        auto & dp = dparams[seq];
        if (!dp.drafting) {
            continue;
        }
        dp.result_q = nullptr; // drafts must equal the draw, so there is nothing to reject by
        go_on((llama_seq_id) seq, dp.pos0, dp.id_last);
        drafter.couple((int32_t) seq, pick_for(dp));
        if (!drafter.waiting((int32_t) seq).tokens.empty()) {
            dp.n_max    = dp.n_max > 0 ? std::min(dp.n_max, n_max) : n_max;
            n_more[seq] = dp.n_max;
        }
    }
    draft_counts ignored;
    drafter.extend(n_more, ignored);
    for (bool again = true; again;) {
        again = false;
        for (size_t seq = 0; seq < texts.size(); ++seq) {
            auto &                   dp    = dparams[seq];
            const lucebox_proposal & chain = drafter.chain((int32_t) seq);
            if (std::exchange(n_more[seq], 0) == 0) {
                continue;
            }
            for (int32_t i = (int32_t) dp.result->size(); i < chain.n_drafted; ++i) {
                dp.result->push_back(chain.tokens[i]);
                if (dp.result_p) {
                    dp.result_p->push_back(chain.probs[i]);
                }
            }
            if (dp.more) {
                n_more[seq] = std::clamp(dp.more(), 0, n_max - chain.n_drafted);
                dp.n_max += n_more[seq];
                again = again || n_more[seq] > 0;
            }
        }
        if (again) {
            drafter.extend(n_more, ignored);
        }
    }
    for (size_t seq = 0; seq < texts.size(); ++seq) {
        drafter.settle((int32_t) seq);
    }
}

// Pairs that wait are kept waiting: to compute them, for a text that may never draft again, can be time lost.
void server_drafter::get_state(llama_seq_id seq, std::vector<uint8_t> & data) {
    data.clear();
    const text & t = texts.at((size_t) seq);
    if (t.lost || t.tokens.empty()) {
        return;
    }
    const mtp_drafter::sequence & waiting = drafter.waiting(seq);
    const int32_t head[] = { t.first, t.begin, (int32_t) t.tokens.size(), (int32_t) waiting.tokens.size() };
    add_bytes(data, head, sizeof(head) / sizeof(head[0]));
    add_bytes(data, t.tokens.data(), t.tokens.size());
    add_bytes(data, t.hidden.data(), t.hidden.size());
    add_bytes(data, waiting.tokens.data(), waiting.tokens.size());
    add_bytes(data, waiting.positions.data(), waiting.positions.size());
    add_bytes(data, waiting.hidden.data(), waiting.hidden.size());
}

void server_drafter::set_state(llama_seq_id seq, const std::vector<uint8_t> & data) {
    text & t = texts.at((size_t) seq);
    drafter.forget_waiting(seq);
    t = {};
    int32_t head[4];
    if (data.size() < sizeof(head)) {
        t.lost = true;
        return;
    }
    const uint8_t * at = data.data();
    take_bytes(at, head, sizeof(head) / sizeof(head[0]));
    t.first = head[0];
    t.begin = head[1];
    t.tokens.resize((size_t) head[2]);
    t.hidden.resize((size_t) head[2] * width);
    take_bytes(at, t.tokens.data(), t.tokens.size());
    take_bytes(at, t.hidden.data(), t.hidden.size());
    std::vector<llama_token> tokens((size_t) head[3]);
    std::vector<llama_pos>   positions(tokens.size());
    std::vector<float>       hidden(width);
    take_bytes(at, tokens.data(), tokens.size());
    take_bytes(at, positions.data(), positions.size());
    if (!positions.empty()) { // behind a checkpoint they may have been computed since
        try {
            drafter.forget_from(seq, positions.front());
        } catch (const std::exception & e) {
            t.lost = true;
            return survive("the MTP block cannot go back in the text", e);
        }
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
        take_bytes(at, hidden.data(), width);
        drafter.feed(seq, tokens[i], positions[i], hidden.data());
    }
}

void server_drafter::survive(const char * what, const std::exception & e) {
    n_failures += 1;
    std::fprintf(stderr, "lucebox: %s: %s%s\n", what, e.what(),
                 n_failures < MOST_FAILURES ? "" : "; no drafts from now on");
    clear();
    for (text & t : texts) {
        t.lost = true;
    }
}

} // namespace lucebox
