// One cycle of speculative decoding: draft, verify, sample while the drafts hold, roll back.
#include "session.h"

#include "even_drafts.h"
#include "graphs.h"
#include "token_logprob.h"

#include "llama-ext.h"

#include "ggml.h"

#include <cmath>

namespace lucebox {

namespace {

// States of a sequence that wait for the MTP block to run over them. Some hundred tokens of a large model, and more than
// most replies of a small one have.
const size_t MAX_WAITING_BYTES = 64 << 20;

// A sequence's part in a cycle.
struct member {
    int32_t                seq;
    seq_state *            state;
    int32_t                width;  // rows in the verify batch
    int32_t                widest; // that are possible
    int32_t                first_row = 0;
    bool                   is_deferred = false; // the pairs of its rows are left to the drafter
    lucebox_proposal       drafts    = {};
    lucebox_cycle_result * result;
    int32_t                max_tokens;
    bool                   logprobs; // are asked for
};

std::vector<member> collect(lucebox_session & s, const lucebox_cycle_request * requests,
                            lucebox_cycle_result * results) {
    std::vector<member> members;
    for (int32_t seq = 0; seq < (int32_t) s.seqs.size(); ++seq) {
        results[seq] = {};
        if (requests[seq].width == 0) {
            continue;
        }
        if (requests[seq].width < 1 || requests[seq].width > s.params.max_width) {
            fail(LUCEBOX_ERR_ARGUMENT, "width %d of sequence %d is not one of 1..%d", requests[seq].width, seq,
                 s.params.max_width);
        }
        if (requests[seq].max_tokens < 1) {
            fail(LUCEBOX_ERR_ARGUMENT, "max_tokens %d of sequence %d is below 1", requests[seq].max_tokens, seq);
        }
        seq_state & state = s.ready(seq);
        const int32_t n_left = (int32_t) s.params.n_ctx - state.n_past;
        if (n_left <= 0) {
            fail(LUCEBOX_ERR_CONTEXT_FULL, "sequence %d has filled its context of %u tokens", seq, s.params.n_ctx);
        }
        member m;
        m.seq        = seq;
        m.state      = &state;
        m.widest     = state.use_mtp ? std::min({ s.params.max_width, requests[seq].max_tokens, n_left }) : 1;
        m.width      = std::min(requests[seq].width, m.widest);
        m.result     = &results[seq];
        m.max_tokens = requests[seq].max_tokens;
        m.logprobs   = requests[seq].logprobs != 0;
        members.push_back(m);
    }
    if (members.empty()) {
        fail(LUCEBOX_ERR_ARGUMENT, "no sequence takes part in the cycle");
    }
    return members;
}

void share(const lucebox_session & s, std::vector<member> & members) {
    std::vector<pass_share> shares;
    for (const member & m : members) {
        shares.push_back({ m.width, m.widest, false });
    }
    share_rows(shares, s.params.even_drafts);
    for (size_t i = 0; i < members.size(); ++i) {
        members[i].width = shares[i].width;
    }
}

// Makes the chains so much longer, but none longer than LUCEBOX_MAX_DRAFT or the tokens that the context can take.
void make_drafts(lucebox_session & s, std::vector<int32_t> n_more, draft_counts & counts) {
    if (s.abort.load()) {
        fail(LUCEBOX_ERR_CANCELLED, "drafting was cancelled");
    }
    for (size_t seq = 0; seq < n_more.size(); ++seq) {
        const seq_state & state = s.seqs[seq];
        const int32_t     room  = state.use_mtp ? (int32_t) s.params.n_ctx - state.n_past : 0;
        const int32_t     have  = state.use_mtp ? s.drafter->chain((int32_t) seq).n_drafted : 0;
        n_more[seq]             = std::max(0, std::min({ n_more[seq], LUCEBOX_MAX_DRAFT - have, room - have }));
    }
    if (s.drafter) {
        s.use_threads(s.params.n_threads);
        s.drafter->extend(n_more, counts);
    }
}

void draft(lucebox_session & s, std::vector<member> & members, draft_counts & counts) {
    std::vector<int32_t> n_more(s.seqs.size(), 0);
    for (const member & m : members) {
        if (m.width > 1) {
            n_more[(size_t) m.seq] = m.width - 1 - s.drafter->chain(m.seq).n_drafted;
        }
    }
    make_drafts(s, n_more, counts);
    for (member & m : members) {
        if (m.state->use_mtp) {
            m.drafts = s.drafter->chain(m.seq);
        }
    }
}

void verify(lucebox_session & s, std::vector<member> & members) {
    s.batch.clear();
    // Who drafts nothing for long need not pay for what only drafts read. A single plain step does: the pair it leaves would
    // make the next chain start from more rows than others, for which a graph has to be built. So do a few of a text that
    // is easy so far: most likely they are followed by drafts.
    bool defers = false;
    for (const member & m : members) {
        if (m.state->use_mtp && s.writer) {
            s.drafter->drop(m.seq); // the trunk writes the pair that the chain started from, and those after it
            defers = defers || (m.width == 1 && (m.state->rests() || s.drafter->waiting(m.seq).tokens.size() > 1));
        }
    }
    for (member & m : members) {
        if (m.state->use_mtp && s.writer) {
            m.is_deferred = m.width == 1 && defers;
            s.writer->defer(m.seq, m.is_deferred);
            m.state->n_plain = m.width == 1 && m.drafts.n_drafted == 0 ? m.state->n_plain + 1 : 0;
        }
        m.first_row = s.batch.add(m.state->last, m.state->n_past, m.seq, true);
        for (int32_t i = 0; i + 1 < m.width; ++i) {
            s.batch.add(m.drafts.tokens[i], m.state->n_past + 1 + i, m.seq, true);
        }
    }
    s.run_trunk();
}

// Rows are sampled in order with the request's own sampler, so its random stream and its penalties see exactly the
// tokens they would see without drafts; rows behind the first miss are never sampled.
void sample(lucebox_session & s, member & m) {
    const llama_vocab *    vocab = s.model->vocab();
    lucebox_cycle_result & r     = *m.result;
    seq_state &            state = *m.state;

    r.n_drafted  = m.drafts.n_drafted;
    r.n_verified = m.width - 1;
    std::copy_n(m.drafts.tokens, r.n_drafted, r.draft_tokens);
    std::copy_n(m.drafts.probs, r.n_drafted, r.draft_probs);
    state.n_rows = 0;
    std::fill_n(r.logprobs, LUCEBOX_MAX_WIDTH, NAN);
    for (int32_t i = 0; i < m.width; ++i) {
        llama_token token;
        try {
            token = next_token(state, s.ctx.get(), m.first_row + i);
        } catch (const error & e) {
            state.phase   = seq_phase::failed;
            state.failure = e.what();
            r.finish      = LUCEBOX_FINISH_FAILED;
            break;
        }
        if (m.logprobs) {
            const float * logits   = llama_get_logits_ith(s.ctx.get(), m.first_row + i);
            r.logprobs[r.n_tokens] = token_logprob(logits, (size_t) s.model->n_vocab(), token);
        }
        state.logprob = r.logprobs[r.n_tokens];
        state.rows[state.n_rows++] = m.first_row + i;
        r.tokens[r.n_tokens++]     = token;

        const bool holds = i < r.n_verified && m.drafts.tokens[i] == token;
        r.n_accepted += holds;
        if (llama_vocab_is_eog(vocab, token)) {
            r.finish = LUCEBOX_FINISH_EOG;
        } else if (r.n_tokens >= m.max_tokens) {
            r.finish = LUCEBOX_FINISH_LIMIT;
        }
        if (!holds || r.finish != LUCEBOX_FINISH_NONE) {
            break;
        }
    }
}

void roll_back(lucebox_session & s, const member & m) {
    const lucebox_cycle_result & r        = *m.result;
    seq_state &                  state    = *m.state;
    const int32_t                n_before = state.n_past;

    // row i of the batch is the state after the token it holds; it pairs with the token sampled from it
    if (state.use_mtp && !s.writer) {
        s.drafter->settle(m.seq);
        for (int32_t i = 0; i < r.n_tokens; ++i) {
            s.drafter->feed(m.seq, r.tokens[i], n_before + i,
                            llama_get_embeddings_nextn_ith(s.ctx.get(), m.first_row + i));
        }
    }
    state.n_past = n_before + r.n_tokens;
    state.last   = r.tokens[r.n_tokens - 1];
    if (r.n_tokens < m.width) {
        if (!llama_memory_seq_rm(llama_get_memory(s.ctx.get()), m.seq, state.n_past, -1)) {
            fail(LUCEBOX_ERR_ROLLBACK, "sequence %d cannot go back from %d to %d tokens", m.seq,
                 n_before + m.width, state.n_past);
        }
        if (state.use_mtp && s.writer) {
            s.drafter->forget_from(m.seq, state.n_past - 1);
        }
    }
    if (state.use_mtp && s.writer) {
        s.feed_newest(m.seq, /*others_are_written=*/!m.is_deferred);
    }
    if (m.result->finish == LUCEBOX_FINISH_NONE && (uint32_t) state.n_past >= s.params.n_ctx) {
        m.result->finish = LUCEBOX_FINISH_CONTEXT;
    }
}

void run_cycle(lucebox_session & s, std::vector<member> & members, lucebox_cycle_stats & stats) {
    draft_counts  counts = std::exchange(s.proposed, {});
    const int64_t start  = ggml_time_us();
    s.use_threads(s.params.n_threads); // a verify step is a decode step, however many rows it has

    bool any_mtp = false;
    for (const member & m : members) {
        if (m.state->use_mtp) {
            any_mtp = true;
            // who does not draft lets pairs pile up: they cost least in wide batches, and nothing if it stays so
            const size_t n_pairs = s.drafter->waiting(m.seq).tokens.size();
            if (n_pairs > s.params.n_ubatch && n_pairs * s.drafter->n_pair_bytes() > MAX_WAITING_BYTES) {
                s.drafter->catch_up(m.seq, counts);
            }
        }
    }
    draft(s, members, counts);
    const int64_t drafted = ggml_time_us();

    s.want_wide_state(any_mtp);
    const build_watch watch(s.ctx.get());
    verify(s, members);
    const int64_t verified = ggml_time_us();

    for (member & m : members) {
        sample(s, m);
    }
    const int64_t sampled = ggml_time_us();

    for (const member & m : members) {
        if (m.state->phase == seq_phase::ready) {
            roll_back(s, m);
        }
    }
    const int64_t done = ggml_time_us();

    stats.draft_us          = counts.time_us + drafted - start;
    stats.verify_us         = verified - drafted;
    stats.sample_us         = sampled - verified;
    stats.rollback_us       = done - sampled;
    stats.n_rows            = s.batch.size();
    stats.n_draft_rows      = counts.n_rows;
    stats.n_draft_steps     = counts.n_steps;
    stats.n_draft_waits     = counts.n_waits;
    stats.graph_built       = watch.has_built();
    stats.n_passes          = watch.n_passes();
    stats.draft_graph_built = counts.graph_built;
}

} // namespace

} // namespace lucebox

using namespace lucebox;

lucebox_status lucebox_session_cycle(lucebox_session * session, const lucebox_cycle_request * requests,
                                     lucebox_cycle_result * results, lucebox_cycle_stats * stats) {
    return guarded([&] {
        needed(requests, "requests");
        needed(results, "results");
        require_result(stats); // before anything is done that could not be reported
        std::vector<member> members = collect(needed(session, "session"), requests, results);
        share(*session, members);
        lucebox_cycle_stats found = {};
        try {
            run_cycle(*session, members, found);
        } catch (...) {
            for (const member & m : members) {
                m.state->phase = seq_phase::failed;
            }
            throw;
        }
        give_result(stats, found);
    });
}

lucebox_status lucebox_session_propose(lucebox_session * session, const int32_t * n_more, lucebox_proposal * out,
                                       int64_t * out_draft_us) {
    return guarded([&] {
        needed(n_more, "n_more");
        needed(out, "out");
        const std::vector<int32_t> wanted(n_more, n_more + needed(session, "session").seqs.size());
        for (size_t seq = 0; seq < wanted.size(); ++seq) {
            if (wanted[seq] < 0 || wanted[seq] > LUCEBOX_MAX_DRAFT) {
                fail(LUCEBOX_ERR_ARGUMENT, "n_more of sequence %zu is %d; it must be 0..%d", seq, wanted[seq],
                     LUCEBOX_MAX_DRAFT);
            }
            if (wanted[seq] > 0) {
                session->ready((int32_t) seq);
            }
        }
        const int64_t start = ggml_time_us();
        try {
            make_drafts(*session, wanted, session->proposed);
        } catch (...) {
            for (size_t seq = 0; seq < wanted.size(); ++seq) {
                if (wanted[seq] > 0) {
                    session->seqs[seq].phase = seq_phase::failed;
                }
            }
            throw;
        }
        const int64_t took_us = ggml_time_us() - start;
        session->proposed.time_us += took_us;
        if (out_draft_us != nullptr) {
            *out_draft_us = took_us;
        }
        for (size_t seq = 0; seq < wanted.size(); ++seq) {
            out[seq] = session->drafter ? session->drafter->chain((int32_t) seq) : lucebox_proposal{};
        }
    });
}

lucebox_status lucebox_session_draft_logits(lucebox_session * session, int32_t seq, float * logits) {
    return guarded([&] {
        needed(logits, "logits");
        seq_state & state = needed(session, "session").ready(seq);
        if (!state.use_mtp || state.n_past >= (int32_t) session->params.n_ctx) {
            fail(LUCEBOX_ERR_STATE, "sequence %d cannot draft: it was prefilled without MTP, or its context is full", seq);
        }
        try {
            session->drafter->drop(seq);
            session->drafter->first_logits(seq, logits);
            session->drafter->drop(seq);
        } catch (...) {
            state.phase = seq_phase::failed;
            throw;
        }
    });
}

lucebox_status lucebox_session_draft(lucebox_session * session, int32_t seq, int32_t n, int32_t * tokens,
                                     float * probs) {
    return guarded([&] {
        needed(tokens, "tokens");
        needed(probs, "probs");
        seq_state & state = needed(session, "session").ready(seq);
        if (!state.use_mtp) {
            fail(LUCEBOX_ERR_STATE, "sequence %d was prefilled without MTP", seq);
        }
        if (n < 1 || n > LUCEBOX_MAX_DRAFT || state.n_past + n > (int32_t) session->params.n_ctx) {
            fail(LUCEBOX_ERR_ARGUMENT, "%d drafts after %d tokens do not fit; at most %d, within n_ctx %u", n,
                 state.n_past, LUCEBOX_MAX_DRAFT, session->params.n_ctx);
        }
        std::vector<int32_t> n_more(session->seqs.size(), 0);
        draft_counts         ignored;
        n_more[(size_t) seq] = n;
        try {
            session->drafter->drop(seq);
            make_drafts(*session, n_more, ignored);
            const lucebox_proposal found = session->drafter->chain(seq);
            std::copy_n(found.tokens, n, tokens);
            std::copy_n(found.probs, n, probs);
            session->drafter->drop(seq);
        } catch (...) {
            state.phase = seq_phase::failed;
            throw;
        }
    });
}
