// Opening and clearing sessions, and prefill.
#include "session.h"

#include "graphs.h"
#include "selection.h"

#include "llama-ext.h"

namespace lucebox {

namespace {

const char * const CACHE_TYPES[] = { "f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl" };

enum ggml_type cache_type(const char * name, const char * which) {
    std::string known;
    for (const char * type : CACHE_TYPES) {
        if (name != nullptr && std::strcmp(name, type) == 0) {
            return type_from_name(type);
        }
        known += (known.empty() ? "" : ", ") + std::string(type);
    }
    fail(LUCEBOX_ERR_ARGUMENT, "%s is '%s'; it must be one of %s", which, name ? name : "(null)", known.c_str());
}

void require_range(const char * name, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
        fail(LUCEBOX_ERR_ARGUMENT, "%s is %lld; it must be %lld..%lld", name, (long long) value, (long long) low,
             (long long) high);
    }
}

bool on_abort_check(void * user_data) {
    return ((const lucebox_session *) user_data)->abort.load(std::memory_order_relaxed);
}

void check_params(const model_state & model, lucebox_session_params & p) {
    const int64_t n_ctx_train = llama_model_n_ctx_train(model.trunk.get());
    if (p.n_ctx == 0) {
        p.n_ctx = (uint32_t) n_ctx_train;
    }
    require_range("n_ctx", p.n_ctx, MIN_N_CTX, n_ctx_train);
    require_range("n_seq", p.n_seq, 1, LUCEBOX_MAX_WIDTH);
    require_range("n_ubatch", p.n_ubatch, 32, 8192);
    require_range("n_threads", p.n_threads, 1, 512);
    require_range("n_threads_batch", p.n_threads_batch, 1, 512);
    require_range("max_width", p.max_width, 1, LUCEBOX_MAX_WIDTH);
    require_range("flash_attn", p.flash_attn, -1, 1);
    require_range("n_kept_graphs", p.n_kept_graphs, 0, 64);
    if (p.max_width > 1 && model.mtp_source == LUCEBOX_MTP_NONE) {
        fail(LUCEBOX_ERR_ARGUMENT, "max_width is %d, but the model was opened without an MTP block", p.max_width);
    }
}

llama_context_params context_params(lucebox_session & s) {
    const lucebox_session_params & p = s.params;

    llama_context_params c = llama_context_default_params();
    c.n_ctx                = GGML_PAD(p.n_ctx, 256) * p.n_seq; // upstream rounds up to this, with a warning
    c.n_seq_max            = p.n_seq;
    c.n_ubatch             = p.n_ubatch;
    c.n_batch              = std::max<uint32_t>(p.n_ubatch, p.n_seq * LUCEBOX_MAX_WIDTH);
    c.n_threads            = p.n_threads;
    c.n_threads_batch      = p.n_threads_batch;
    c.type_k               = cache_type(p.cache_type_k, "cache_type_k");
    c.type_v               = cache_type(p.cache_type_v, "cache_type_v");
    c.flash_attn_type      = p.flash_attn < 0  ? LLAMA_FLASH_ATTN_TYPE_AUTO :
                             p.flash_attn == 0 ? LLAMA_FLASH_ATTN_TYPE_DISABLED :
                                                 LLAMA_FLASH_ATTN_TYPE_ENABLED;
    // each sequence has its own cells: what one holds cannot change another's result
    c.kv_unified          = false;
    c.abort_callback      = on_abort_check;
    c.abort_callback_data = &s;
    return c;
}

// Rows of the widest ubatch whose graph is kept: a verify step, or the pairs that a first draft takes along.
const uint32_t MAX_KEPT_ROWS = 2 * LUCEBOX_MAX_WIDTH;

// The same of the MTP block: chains of a few sequences.
const uint32_t MAX_KEPT_DRAFT_ROWS = 4 * LUCEBOX_MAX_DRAFT;

llama_context_ptr make_context(llama_model * model, const llama_context_params & params, const char * what) {
    const log_capture capture;
    llama_context_ptr ctx(llama_init_from_model(model, params));
    if (!ctx) {
        const std::string cause = capture.text_or("the context gave no reason");
        fail(tells_of_memory(cause) ? LUCEBOX_ERR_MEMORY : LUCEBOX_ERR_ARGUMENT, "the %s cannot be set up: %s", what, cause.c_str());
    }
    return ctx;
}

// Rows of the MTP block's widest pass where it reads no prompts: what the sequences have waiting, and a chain of each.
uint32_t few_mtp_rows(const lucebox_session_params & p) {
    return std::max<uint32_t>(64, p.n_seq * 3 * LUCEBOX_MAX_WIDTH);
}

void open_drafter(lucebox_session & s, const llama_context_params & mtp) {
    s.drafter.reset();
    s.mtp_ctx.reset();
    s.mtp_ctx = make_context(s.model->mtp_model(), mtp, "context of the MTP block");
    s.drafter = std::make_unique<mtp_drafter>(s.mtp_ctx.get(), s.params.n_seq, s.model->files, s.params.draft_chain);
    lucebox_keep_graphs(s.drafter->context(), (uint32_t) s.params.n_kept_graphs, MAX_KEPT_DRAFT_ROWS);
    lucebox_select_cells(s.drafter->context(), s.params.attend_selected);
}

std::unique_ptr<lucebox_session> open_session(lucebox_model * model, const lucebox_session_params & params) {
    auto s    = std::make_unique<lucebox_session>();
    s->model  = model->state;
    s->params = params;
    check_params(*s->model, s->params);

    const bool           use_mtp = s->params.max_width > 1;
    llama_context_params trunk   = context_params(*s);
    // a rollback goes back at most over the drafts of one cycle
    trunk.n_rs_seq = (uint32_t) s->params.max_width - 1;
    // logits of a whole prompt chunk are never asked for, and would have to have their place
    trunk.n_outputs_max = LUCEBOX_MAX_WIDTH;
    s->ctx         = make_context(s->model->trunk.get(), trunk, "context");
    lucebox_keep_graphs(s->ctx.get(), (uint32_t) s->params.n_kept_graphs, MAX_KEPT_ROWS);
    s->attends_selected = lucebox_select_cells(s->ctx.get(), s->params.attend_selected);
    s->batch       = common_batch(s->ctx.get());
    s->seqs.resize(s->params.n_seq);
    if (llama_n_rs_seq(s->ctx.get()) < trunk.n_rs_seq) {
        fail(LUCEBOX_ERR_ARGUMENT, "the model cannot take back %u tokens", trunk.n_rs_seq);
    }

    if (use_mtp) {
        llama_context_params mtp = context_params(*s);
        mtp.ctx_type             = LLAMA_CONTEXT_TYPE_MTP;
        mtp.n_rs_seq             = 0;
        mtp.n_outputs_max        = s->params.n_seq;
        mtp.ctx_other            = s->ctx.get();
        // a first draft step runs the pairs of one cycle and of those that were skipped before it
        mtp.n_batch = std::max(mtp.n_batch, s->params.n_seq * 3 * LUCEBOX_MAX_WIDTH);
        // where the trunk's graph writes for the block, no pass of its own has more rows
        const uint32_t n_ubatch = mtp.n_ubatch;
        mtp.n_ubatch            = s->params.mtp_kv_in_trunk ? std::min(n_ubatch, few_mtp_rows(s->params)) : n_ubatch;
        open_drafter(*s, mtp);
        s->newest.resize((size_t) hidden_width(s->model->trunk.get()));
        if (s->params.mtp_kv_in_trunk) {
            s->writer = make_mtp_writer(s->ctx.get(), s->drafter->context(), s->why_no_writer);
            if (!s->writer && mtp.n_ubatch < n_ubatch) {
                mtp.n_ubatch = n_ubatch; // the block reads prompts after all
                open_drafter(*s, mtp);
            }
        } else {
            s->why_no_writer = "it was not asked for";
        }
    }
    return s;
}

void check_prompt(const lucebox_session & s, int32_t seq, const int32_t * tokens, size_t n_tokens) {
    if (s.at(seq).phase != seq_phase::empty) {
        fail(LUCEBOX_ERR_STATE, "sequence %d is in use; clear it before a new prompt", seq);
    }
    if (tokens == nullptr || n_tokens == 0) {
        fail(LUCEBOX_ERR_ARGUMENT, "the prompt has no tokens");
    }
    if (n_tokens > s.params.n_ctx) {
        fail(LUCEBOX_ERR_CONTEXT_FULL, "the prompt has %zu tokens, n_ctx is %u", n_tokens, s.params.n_ctx);
    }
    const int32_t n_vocab = s.model->n_vocab();
    for (size_t i = 0; i < n_tokens; ++i) {
        if (tokens[i] < 0 || tokens[i] >= n_vocab) {
            fail(LUCEBOX_ERR_ARGUMENT, "token %zu of the prompt is %d; ids are 0..%d", i, tokens[i], n_vocab - 1);
        }
    }
}

// Runs tokens [begin, end) and hands their states to the drafter.
void prefill_chunk(lucebox_session & s, int32_t seq, const int32_t * tokens, size_t begin, size_t end,
                   size_t n_tokens) {
    s.batch.clear();
    for (size_t i = begin; i < end; ++i) {
        s.batch.add(tokens[i], (llama_pos) i, seq, i + 1 == n_tokens);
    }
    s.run_trunk();
    if (!s.at(seq).use_mtp || s.writer) {
        return;
    }
    for (size_t i = begin; i < end && i + 1 < n_tokens; ++i) {
        s.drafter->feed(seq, tokens[i + 1], (llama_pos) i,
                        llama_get_embeddings_nextn_ith(s.ctx.get(), (int32_t) (i - begin)));
    }
    draft_counts ignored;
    s.drafter->catch_up(seq, ignored);
}

void prefill(lucebox_session & s, int32_t seq, const int32_t * tokens, size_t n_tokens,
             lucebox_progress_callback progress, void * user_data) {
    seq_state & state = s.at(seq);
    s.want_wide_state(state.use_mtp);
    if (s.writer) {
        s.writer->enable(seq, state.use_mtp);
    }
    s.use_threads(s.params.n_threads_batch);

    // The last token runs alone. With MTP the trunk's last layer computes every row, without it only the rows that
    // give logits; alone the row has the same company, hence the same bits, either way.
    const size_t n_head = n_tokens - 1;
    for (size_t begin = 0; begin < n_head; begin += s.params.n_ubatch) {
        const size_t end = std::min<size_t>(n_head, begin + s.params.n_ubatch);
        prefill_chunk(s, seq, tokens, begin, end, n_tokens);
        if (progress != nullptr && !progress((float) end / (float) n_tokens, user_data)) {
            fail(LUCEBOX_ERR_CANCELLED, "prefill was cancelled after %zu of %zu tokens", end, n_tokens);
        }
    }
    prefill_chunk(s, seq, tokens, n_head, n_tokens, n_tokens);

    for (size_t i = 0; i < n_tokens; ++i) {
        common_sampler_accept(state.sampler.get(), tokens[i], false);
    }
    state.last    = next_token(state, s.ctx.get(), 0);
    state.n_past  = (int32_t) n_tokens;
    state.n_rows  = 1;
    state.rows[0] = 0;
    if (state.use_mtp && s.writer) {
        s.feed_newest(seq, /*others_are_written=*/true);
    } else if (state.use_mtp) {
        s.drafter->feed(seq, state.last, (llama_pos) n_head, llama_get_embeddings_nextn_ith(s.ctx.get(), 0));
    }
    state.phase = seq_phase::ready;
}

} // namespace

llama_token next_token(seq_state & state, llama_context * ctx, int32_t row) {
    try {
        const llama_token token = common_sampler_sample(state.sampler.get(), ctx, row);
        common_sampler_accept(state.sampler.get(), token, true);
        return token;
    } catch (const std::bad_alloc &) {
        throw;
    } catch (const std::exception & e) {
        fail(LUCEBOX_ERR_SAMPLING, "%s", e.what());
    }
}

} // namespace lucebox

using namespace lucebox;

const seq_state & lucebox_session::at(int32_t seq) const {
    if (seq < 0 || (size_t) seq >= seqs.size()) {
        fail(LUCEBOX_ERR_ARGUMENT, "sequence %d is not one of 0..%zu", seq, seqs.size() - 1);
    }
    return seqs[(size_t) seq];
}

seq_state & lucebox_session::at(int32_t seq) {
    return const_cast<seq_state &>(static_cast<const lucebox_session *>(this)->at(seq));
}

seq_state & lucebox_session::ready(int32_t seq) {
    seq_state & state = at(seq);
    if (state.phase != seq_phase::ready) {
        fail(LUCEBOX_ERR_STATE, "sequence %d %s", seq,
             state.phase == seq_phase::empty ? "has no prompt" : "failed earlier; clear it first");
    }
    return state;
}

void lucebox_session::clear(int32_t seq) {
    seq_state & state = at(seq);
    llama_memory_seq_rm(llama_get_memory(ctx.get()), seq, -1, -1);
    if (drafter) {
        drafter->clear(seq);
    }
    if (writer) {
        writer->enable(seq, false);
    }
    state = {};
}

void lucebox_session::feed_newest(int32_t seq, bool others_are_written) {
    const seq_state & state = at(seq);
    if (!writer->get_hidden(seq, state.n_past - 1, newest.data())) {
        fail(LUCEBOX_ERR_INTERNAL, "the model's state after token %d of sequence %d is not at hand", state.n_past - 1, seq);
    }
    if (others_are_written) {
        drafter->forget_waiting(seq);
    }
    drafter->feed(seq, state.last, state.n_past - 1, newest.data());
}

void lucebox_session::couple(int32_t seq, const draft_pick & pick) {
    if (drafter && params.coupled_drafts) {
        drafter->couple(seq, pick);
    }
}

void lucebox_session::want_wide_state(bool want) {
    for (const seq_state & state : seqs) {
        want = want || (state.phase == seq_phase::ready && state.use_mtp);
    }
    want = want && !writer;
    if (want != wide_state) {
        llama_set_embeddings_nextn(ctx.get(), want, /*masked=*/false);
        wide_state = want;
    }
}

void lucebox_session::use_threads(int32_t n_wide) {
    if (n_wide == n_wide_threads) {
        return; // the setter logs
    }
    n_wide_threads = n_wide;
    llama_set_n_threads(ctx.get(), params.n_threads, n_wide);
    if (drafter) {
        llama_set_n_threads(drafter->context(), params.n_threads, n_wide);
    }
}

void lucebox_session::run_trunk() {
    // the rows of earlier calls are gone with this one
    for (seq_state & state : seqs) {
        state.n_rows = 0;
    }
    // back ends other than the CPU do not look at the abort callback
    if (abort.load()) {
        fail(LUCEBOX_ERR_CANCELLED, "the computation was cancelled");
    }
    model->files.require_unchanged();
    const log_capture capture;
    const int32_t     status = llama_process(ctx.get(), LLAMA_PROCESS_TYPE_DECODE, batch.get());
    if (status == 2 || (status != 0 && abort.load())) {
        fail(LUCEBOX_ERR_CANCELLED, "the computation was cancelled");
    }
    if (status != 0) {
        const std::string cause = capture.text_or("no reason was logged");
        fail(tells_of_memory(cause) ? LUCEBOX_ERR_MEMORY : LUCEBOX_ERR_DECODE,
             "the model failed on a batch of %d rows (status %d): %s", batch.size(), status, cause.c_str());
    }
    llama_synchronize(ctx.get());
}

void lucebox_session_params_init(lucebox_session_params * params) {
    if (params == nullptr) {
        return;
    }
    *params                 = {};
    params->struct_size     = sizeof(*params);
    params->n_seq           = 1;
    params->n_ubatch        = 512;
    params->n_threads       = 1;
    params->n_threads_batch = 1;
    params->max_width       = 1;
    params->flash_attn      = -1;
    params->mtp_kv_in_trunk = true;
    params->draft_chain     = true;
    params->cache_type_k    = "f16";
    params->cache_type_v    = "f16";
    params->n_kept_graphs   = 16;
    params->attend_selected = true;
    params->even_drafts     = true;
    params->coupled_drafts  = true;
}

lucebox_status lucebox_session_open(lucebox_model * model, const lucebox_session_params * params,
                                    lucebox_session ** out) {
    return guarded([&] {
        needed(out, "out") = nullptr;
        needed(model, "model");
        *out = open_session(model, take_params(params, lucebox_session_params_init)).release();
    });
}

void lucebox_session_close(lucebox_session * session) {
    delete session;
}

lucebox_status lucebox_session_get_info(const lucebox_session * session, lucebox_session_info * info) {
    return guarded([&] {
        needed(session, "session");
        lucebox_session_info found = {};
        found.n_ctx                = session->params.n_ctx;
        found.n_seq                = session->params.n_seq;
        found.n_ubatch             = session->params.n_ubatch;
        found.max_width            = session->params.max_width;
        found.n_rs_seq             = llama_n_rs_seq(session->ctx.get());
        for (const auto & entry : llama_get_memory_breakdown(session->ctx.get())) {
            found.context_bytes += entry.second.context;
            found.compute_bytes += entry.second.compute;
        }
        found.attend_selected   = session->attends_selected;
        found.kept_graphs_bytes = lucebox_kept_graphs_max_bytes(session->ctx.get());
        if (session->drafter) {
            found.kept_graphs_bytes += lucebox_kept_graphs_max_bytes(session->drafter->context());
            for (const auto & entry : llama_get_memory_breakdown(session->drafter->context())) {
                found.mtp_context_bytes += entry.second.context;
                found.mtp_compute_bytes += entry.second.compute;
            }
            found.draft_chain = session->drafter->why_stepwise().empty();
        }
        if (session->writer) {
            found.mtp_kv_in_trunk = true;
            found.mtp_context_bytes += session->writer->n_bytes();
        }
        give_result(info, found);
    });
}

const char * lucebox_session_own_pass_reason(const lucebox_session * session) {
    return session != nullptr ? session->why_no_writer.c_str() : "";
}

const char * lucebox_session_why_stepwise(const lucebox_session * session) {
    return session == nullptr || !session->drafter ? "no drafts are made" : session->drafter->why_stepwise().c_str();
}

lucebox_status lucebox_session_clear(lucebox_session * session, int32_t seq) {
    return guarded([&] { needed(session, "session").clear(seq); });
}

lucebox_status lucebox_session_prefill(lucebox_session * session, int32_t seq, const int32_t * tokens, size_t n_tokens,
                                       lucebox_sampler * sampler, bool use_mtp, lucebox_progress_callback progress,
                                       void * user_data, int32_t * out_token, int32_t * out_finish) {
    std::unique_ptr<lucebox_sampler> owned(sampler);
    return guarded([&] {
        check_prompt(needed(session, "session"), seq, tokens, n_tokens);
        needed(out_token, "out_token");
        needed(out_finish, "out_finish");
        if (!owned || owned->model != session->model) {
            fail(LUCEBOX_ERR_ARGUMENT, "the sampler is NULL or was made for another model");
        }
        seq_state & state = session->at(seq);
        state.use_mtp     = use_mtp && session->drafter != nullptr;
        state.sampler     = std::move(owned->chain);
        session->couple(seq, owned->pick);
        try {
            prefill(*session, seq, tokens, n_tokens, progress, user_data);
        } catch (...) {
            session->clear(seq);
            throw;
        }
        *out_token  = state.last;
        *out_finish = llama_vocab_is_eog(session->model->vocab(), state.last)     ? LUCEBOX_FINISH_EOG :
                      (uint32_t) state.n_past >= session->params.n_ctx ? LUCEBOX_FINISH_CONTEXT :
                                                                         LUCEBOX_FINISH_NONE;
    });
}

lucebox_status lucebox_session_force(lucebox_session * session, int32_t seq, int32_t token) {
    return guarded([&] {
        seq_state & state = needed(session, "session").ready(seq);
        if (token < 0 || token >= session->model->n_vocab()) {
            fail(LUCEBOX_ERR_ARGUMENT, "token id %d is outside the vocabulary, 0..%d", token,
                 session->model->n_vocab() - 1);
        }
        state.last = token;
        if (state.use_mtp) {
            session->drafter->drop(seq); // it goes on from the token that is replaced
            session->drafter->force(seq, token);
        }
    });
}

const float * lucebox_session_logits(const lucebox_session * session, int32_t seq, int32_t row) {
    if (session == nullptr || seq < 0 || (size_t) seq >= session->seqs.size()) {
        return nullptr;
    }
    const seq_state & state = session->seqs[(size_t) seq];
    if (row < 0 || row >= state.n_rows) {
        return nullptr;
    }
    return llama_get_logits_ith(session->ctx.get(), state.rows[row]);
}

const char * lucebox_session_failure(const lucebox_session * session, int32_t seq) {
    return seq >= 0 && (size_t) seq < session->seqs.size() ? session->seqs[(size_t) seq].failure.c_str() : "";
}

int32_t lucebox_session_n_past(const lucebox_session * session, int32_t seq) {
    return session != nullptr && seq >= 0 && (size_t) seq < session->seqs.size() ? session->seqs[(size_t) seq].n_past : 0;
}

void lucebox_session_abort(lucebox_session * session) {
    if (session != nullptr) {
        session->abort.store(true);
    }
}

void lucebox_session_abort_reset(lucebox_session * session) {
    if (session != nullptr) {
        session->abort.store(false);
    }
}
