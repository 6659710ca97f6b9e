#include "mtp_chain.h"

#ifdef LUCEBOX_COUPLED_DRAFTS
#    include "gumbel.h"
#endif

#include "llama-context.h"
#include "llama-memory-hybrid-idx.h"
#include "models/models.h"
#include "selection.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

ggml_backend_dev_t device_of(const ggml_tensor * weight) {
    return ggml_backend_buft_get_device(ggml_backend_buffer_get_type(weight->buffer));
}

bool is_on_cpu(const ggml_tensor * weight) {
    const ggml_backend_dev_t device = device_of(weight);
    return device == nullptr || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

const llama_model & with_table(const llama_model & model, const ggml_tensor * own, const llama_cparams & cparams) {
    return own != nullptr || cparams.ctx_other == nullptr ? model : *llama_get_model(cparams.ctx_other);
}

// What a draft is picked from, and where its embedding is looked up.
struct draft_tables {
    ggml_tensor * head;
    ggml_tensor * ids;  // the tokens of the rows of the head; null: the row is the token
    ggml_tensor * embd; // one row for each row of the head if `by_row`, for each token otherwise
    bool          by_row;
};

draft_tables tables_of(const llama_model & model, const llama_cparams & cparams) {
    return {
        model.draft_output ? model.draft_output : with_table(model, model.output, cparams).output,
        model.draft_ids,
        model.draft_embd ? model.draft_embd : with_table(model, model.tok_embd, cparams).tok_embd,
        model.draft_embd != nullptr,
    };
}

#ifdef LUCEBOX_COUPLED_DRAFTS
// What an input holds of a sequence: its lucebox::draft_pick, and the position of the first draft.
const int64_t N_PICK_WORDS = (int64_t) lucebox::DRAFT_PICK_WORDS + 1;

// Candidates that a device hands to the host, which picks among them: the most likely ones.
const int64_t MAX_HANDED_OVER = 64;

// dst: F32 [3, n_seqs], row of the head, token, and its chance to hold; sources: logits [n, n_seqs], the input above, and
// two that may be missing, I32 [n] or [n, n_seqs]: the tokens of the logits, and the rows of the head they belong to.
void pick_op(ggml_tensor * dst, int ith, int nth, void * step) {
    const ggml_tensor * logits = dst->src[0];
    const ggml_tensor * how    = dst->src[1];
    const ggml_tensor * ids    = dst->src[2];
    const ggml_tensor * rows   = dst->src[3];

    const auto of_seq = [](const ggml_tensor * t, int64_t s) -> const int32_t * {
        return t ? (const int32_t *) ((const char *) t->data + (t->ne[1] > 1 ? s * t->nb[1] : 0)) : nullptr;
    };
    for (int64_t s = ith; s < logits->ne[1]; s += nth) {
        const int32_t *     words = of_seq(how, s);
        lucebox::draft_pick pick;
        std::memcpy((void *) &pick, words, sizeof(pick));
        const int64_t   position = words[lucebox::DRAFT_PICK_WORDS] + (int64_t) (intptr_t) step;
        const int32_t * tokens   = of_seq(ids, s);
        const auto      found    = lucebox::pick_draft(pick, position, (const float *) ((const char *) logits->data + s * logits->nb[1]),
                                                       tokens, logits->ne[0]);
        float * out = (float *) ((char *) dst->data + s * dst->nb[1]);
        // both fit into a float: a vocabulary has far less than 2^24 tokens
        out[0] = (float) (rows ? of_seq(rows, s)[found.row] : found.row);
        out[1] = (float) (tokens ? tokens[found.row] : found.row);
        out[2] = found.prob;
    }
}
#endif

// The rows of a batch by steps: the first step has all but the last n_steps - 1 rows of each sequence, every later one
// the next row of each. What upstream fills in for the whole batch is copied from there, so that it is computed in one
// way only.
class chain_rows : public llm_graph_input_i {
  public:
    chain_rows(ggml_context * ctx, ggml_cgraph * gf, const llama_ubatch & ubatch, int64_t n_steps, int64_t width,
               bool on_cpu) :
        n_seqs(ubatch.n_seqs),
        n_first(ubatch.n_seq_tokens - (n_steps - 1)),
        ctx(ctx),
        gf(gf),
        n_steps(n_steps),
        n_seq_rows(ubatch.n_seq_tokens),
        width(width),
        on_cpu(on_cpu) {
        tokens = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n_first * n_seqs);
        h      = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, width, n_first * n_seqs);
        ggml_set_input(tokens);
        ggml_set_input(h);
    }

#ifdef LUCEBOX_COUPLED_DRAFTS
    // How each sequence picks, as pick_op reads it.
    ggml_tensor * add_picks(const lucebox::draft_pick * by_seq) {
        picks = by_seq;
        how   = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, N_PICK_WORDS, n_seqs);
        ggml_set_input(how);
        return how;
    }
#endif

    int64_t n_rows(int64_t step) const { return (step == 0 ? n_first : 1) * n_seqs; }

    // The rows of each step of an input that has `n_planes` planes of a row per token: [ne0, rows], or [rows * size of
    // a row] where ne0 is 0.
    std::vector<ggml_tensor *> split(ggml_tensor * all, int64_t ne0, int64_t n_planes = 1) {
        const int64_t n_row  = ggml_nelements(all) / (n_planes * n_seq_rows * n_seqs);
        ggml_tensor * packed = ggml_new_tensor_1d(ctx, all->type, ggml_nelements(all));
        ggml_set_input(packed);
        ggml_build_forward_expand(gf, all); // nothing computes with it, but it is filled in and read
        parts.push_back({ all, packed, n_planes, n_row * ggml_type_size(all->type) });

        // one upload instead of one for each step: a view of host memory would be copied by itself
        ggml_tensor * source = on_cpu ? packed : ggml_cont(ctx, packed);
        ggml_build_forward_expand(gf, source);

        std::vector<ggml_tensor *> views;
        size_t                     offset = 0;
        for (int64_t step = 0; step < n_steps; ++step) {
            const int64_t n = n_planes * n_rows(step) * n_row;
            views.push_back(ne0 == 0 ? ggml_view_1d(ctx, source, n, offset) :
                                       ggml_view_2d(ctx, source, ne0, n / ne0, ggml_row_size(all->type, ne0), offset));
            offset += n * ggml_type_size(all->type);
        }
        return views;
    }

    void set_input(const llama_ubatch * ubatch) override {
        for (int64_t s = 0; s < n_seqs; ++s) {
            const int64_t from = s * n_seq_rows;
            const int64_t to   = s * n_first;
            ggml_backend_tensor_set(tokens, ubatch->token + from, to * sizeof(llama_token), n_first * sizeof(llama_token));
            ggml_backend_tensor_set(h, ubatch->embd + from * width, to * h->nb[1], n_first * h->nb[1]);
        }
#ifdef LUCEBOX_COUPLED_DRAFTS
        for (int64_t s = 0; how != nullptr && s < n_seqs; ++s) {
            // the newest pair of a sequence is at the place of the state, its token one further, the draft two
            const int64_t newest              = s * n_seq_rows + n_first - 1;
            int32_t       words[N_PICK_WORDS] = {};
            std::memcpy(words, &picks[ubatch->seq_id[newest][0]], sizeof(lucebox::draft_pick));
            words[lucebox::DRAFT_PICK_WORDS] = ubatch->pos[newest] + 2;
            ggml_backend_tensor_set(how, words, s * how->nb[1], sizeof(words));
        }
#endif
        for (const part & p : parts) {
            GGML_ASSERT(ggml_backend_buffer_is_host(p.all->buffer));
            fill(p);
            ggml_backend_tensor_set(p.packed, bytes.data(), 0, bytes.size());
        }
    }

    // the inputs it copies from look at everything else
    bool can_reuse(const llm_graph_params & params) override {
        return params.ubatch.n_seqs == n_seqs && params.ubatch.n_seq_tokens == n_seq_rows;
    }

    const int64_t n_seqs;
    const int64_t n_first; // rows of a sequence in the first step

    ggml_tensor * tokens; // I32 [n_first * n_seqs]
    ggml_tensor * h;      // F32 [width, n_first * n_seqs]

  private:
    struct part {
        ggml_tensor * all;
        ggml_tensor * packed;
        int64_t       n_planes;
        size_t        row_bytes;
    };

    void fill(const part & p) {
        bytes.resize(ggml_nbytes(p.packed));
        uint8_t * to = bytes.data();
        for (int64_t step = 0; step < n_steps; ++step) {
            const int64_t first = step == 0 ? 0 : n_first + step - 1;
            const size_t  n     = (step == 0 ? n_first : 1) * p.row_bytes;
            for (int64_t plane = 0; plane < p.n_planes; ++plane) {
                for (int64_t s = 0; s < n_seqs; ++s, to += n) {
                    const int64_t row = (plane * n_seqs + s) * n_seq_rows + first;
                    std::memcpy(to, (const uint8_t *) p.all->data + row * p.row_bytes, n);
                }
            }
        }
    }

    ggml_context *       ctx;
    ggml_cgraph *        gf;
    const int64_t        n_steps;
    const int64_t        n_seq_rows;
    const int64_t        width;
    const bool           on_cpu;
    std::vector<part>    parts;
    std::vector<uint8_t> bytes;
#ifdef LUCEBOX_COUPLED_DRAFTS
    const lucebox::draft_pick * picks = nullptr;
    ggml_tensor *               how   = nullptr; // I32 [N_PICK_WORDS, n_seqs]
#endif
};

// What a step drafts.
struct choice {
    ggml_tensor * row;   // I32 [n_seqs], of the head
    ggml_tensor * token; // I32 [n_seqs]
    ggml_tensor * pair;  // F32 [2, 1, n_seqs], token and probability
};

struct mtp_chain : public llama_model_qwen4exp::graph_mtp {
    mtp_chain(const llama_model & model, const llm_graph_params & params);

  private:
    choice likeliest(ggml_tensor * logits, const draft_tables & tables);
    choice coupled(ggml_tensor * logits, const draft_tables & tables, ggml_tensor * how, int64_t step);

    ggml_tensor * token_of(ggml_tensor * row, const draft_tables & tables) {
        return tables.ids ? ggml_reshape_1d(ctx0, ggml_get_rows(ctx0, tables.ids, row), row->ne[0]) : row;
    }

    // a step: what the helpers of the base need to know of its rows
    mtp_chain(const llama_model & model, const llm_graph_params & params, no_build) :
        graph_mtp(model, params, no_build{}) {}
};

llm_graph_params params_of_step(const llm_graph_params & params, int64_t n_rows, int64_t n_seqs) {
    llm_graph_params step    = params;
    step.ubatch.n_tokens     = (uint32_t) n_rows;
    step.ubatch.n_seq_tokens = (uint32_t) (n_rows / n_seqs);
    return step;
}

mtp_chain::mtp_chain(const llama_model & model, const llm_graph_params & params) : graph_mtp(model, params, no_build{}) {
    const int64_t n_steps = cparams.mtp_chain;
    if (!ubatch.equal_seqs() || (int64_t) ubatch.n_seq_tokens < n_steps || n_outputs != (int64_t) ubatch.n_seqs) {
        throw std::runtime_error("a chain of drafts needs as many rows of each sequence and one output each");
    }
    const int         il       = hparams.n_layer();
    const auto        tables   = tables_of(model, cparams);
    const auto *      hybrid   = static_cast<const llama_memory_hybrid_idx_context *>(mctx);
    const int64_t     n_pos    = hparams.n_pos_per_embd();
    const llama_model & m_embd = with_table(model, model.tok_embd, cparams);

    auto owned = std::make_unique<chain_rows>(ctx0, gf, ubatch, n_steps, hparams.n_embd_nextn(),
                                              is_on_cpu(model.layers[il].nextn.eh_proj));
    chain_rows & rows = *owned;

    // first, so that what follows is computed where the block is
    ggml_tensor * embd = ggml_get_rows(ctx0, m_embd.tok_embd, rows.tokens);
    ggml_build_forward_expand(gf, embd);

    auto * inp_hyb = build_inp_mem_hybrid();
    auto * all     = inp_hyb->get_attn();
    ggml_build_forward_expand(gf, inp_hyb->get_recr()->s_copy);

    const auto pos    = rows.split(build_inp_pos(), 0, n_pos);
    const auto k_idxs = rows.split(all->self_k_idxs, 0);
    const auto v_idxs = rows.split(all->self_v_idxs, 0);

    std::vector<std::shared_ptr<llama_model_qwen4exp::llm_graph_input_kpool>> kpool(n_steps);
    if (hybrid->get_idx() && hparams.dsv4_compress_ratios[il] > 0) {
        kpool = split_kpool(*build_inp_kpool(hybrid), [&](ggml_tensor * t) { return rows.split(t, ggml_is_vector(t) ? 0 : t->ne[0]); });
    }

    // A mask of the whole cache for each row is filled in and sent to the device only where a step reads it.
    // The first step has most rows.
    const bool is_masked = !kpool[0] || !lucebox_names_cells(cparams, ubatch, *hybrid, rows.n_rows(0));
    const auto mask      = is_masked ? rows.split(all->self_kq_mask, all->self_kq_mask->ne[0]) : std::vector<ggml_tensor *>();

    llm_graph_input_attn_kv inp(hparams, cparams, all->mctx);
    inp.self_k_rot = all->self_k_rot;
    inp.self_v_rot = all->self_v_rot;

    ggml_tensor * how = nullptr;
#ifdef LUCEBOX_COUPLED_DRAFTS
    if (cparams.mtp_picks) {
        how = rows.add_picks(cparams.mtp_picks);
    }
#endif
    ggml_tensor * h      = rows.h;
    ggml_tensor * drafts = nullptr; // [2, steps so far, n_seqs]
    for (int64_t i = 0; i < n_steps; ++i) {
        inp.self_k_idxs = k_idxs[i];
        inp.self_v_idxs = v_idxs[i];
        if (is_masked) {
            const int64_t n_stream = all->self_kq_mask->ne[3];
            inp.self_kq_mask = ggml_reshape_4d(ctx0, mask[i], mask[i]->ne[0], mask[i]->ne[1] / n_stream, 1, n_stream);
            inp.self_kq_mask_cnv = inp.self_kq_mask;
        }

        const llm_graph_params of_step = params_of_step(params, rows.n_rows(i), rows.n_seqs);
        mtp_chain              step(model, of_step, no_build{});
        h = step.build_block(embd, h, &inp, hybrid, kpool[i].get(), pos[i]);
        if (i == 0 && rows.n_first > 1) {
            // a chain goes on from the newest pair of each sequence
            h = ggml_cont(ctx0, ggml_view_2d(ctx0, h, h->ne[0], rows.n_seqs, h->nb[1] * rows.n_first, h->nb[1] * (rows.n_first - 1)));
        }
        cb(h, "h_nextn", il);

        ggml_tensor * logits = build_head(h);
        cb(logits, "mtp_logits", il);
        const choice draft = how ? coupled(logits, tables, how, i) : likeliest(logits, tables);
        drafts             = drafts ? ggml_concat(ctx0, drafts, draft.pair, 1) : draft.pair;
        ggml_build_forward_expand(gf, drafts);

        embd = ggml_get_rows(ctx0, tables.embd, tables.by_row ? draft.row : draft.token);
    }

    res->t_embd      = nullptr;
    res->t_h_nextn   = h;
    res->t_mtp_chain = drafts;
    ggml_set_output(drafts);
    ggml_build_forward_expand(gf, h);

    res->add_input(std::move(owned)); // last: it copies what the others were filled with
    res->set_params(params);          // the steps put theirs there
}

choice mtp_chain::likeliest(ggml_tensor * logits, const draft_tables & tables) {
    const int64_t n_seqs = logits->ne[1];
    ggml_tensor * best   = ggml_argmax(ctx0, logits);
    ggml_tensor * prob   = ggml_get_rows(ctx0, ggml_reshape_3d(ctx0, ggml_soft_max(ctx0, logits), 1, logits->ne[0], n_seqs),
                                         ggml_reshape_2d(ctx0, best, 1, n_seqs));
    ggml_tensor * token  = token_of(best, tables);
    // it fits into a float: a vocabulary has far less than 2^24 tokens
    ggml_tensor * id = ggml_reshape_3d(ctx0, ggml_cast(ctx0, token, GGML_TYPE_F32), 1, 1, n_seqs);
    return { best, token, ggml_concat(ctx0, id, prob, 0) };
}

#ifdef LUCEBOX_COUPLED_DRAFTS
// The host picks, also for a head on a device, which then hands over its most likely tokens: with noise for the few that
// the filters leave, that is less work than noise for a whole vocabulary, wherever it is made.
choice mtp_chain::coupled(ggml_tensor * logits, const draft_tables & tables, ggml_tensor * how, int64_t step) {
    const int64_t n_seqs = logits->ne[1];
    ggml_tensor * ids    = tables.ids ? ggml_reshape_1d(ctx0, tables.ids, ggml_nelements(tables.ids)) : nullptr;
    ggml_tensor * rows   = nullptr;
    if (!is_on_cpu(tables.head)) {
        const int64_t n = std::min(MAX_HANDED_OVER, logits->ne[0]);
        rows            = ggml_top_k(ctx0, logits, (int) n);
        logits = ggml_reshape_2d(ctx0, ggml_get_rows(ctx0, ggml_reshape_3d(ctx0, logits, 1, logits->ne[0], n_seqs), rows), n, n_seqs);
        ids    = rows;
        if (tables.ids) {
            ids = ggml_reshape_2d(ctx0, ggml_get_rows(ctx0, tables.ids, ggml_reshape_1d(ctx0, rows, n * n_seqs)), n, n_seqs);
        }
    }
    ggml_tensor * sources[] = { logits, how, ids, rows };
    ggml_tensor * found     = ggml_custom_4d(ctx0, GGML_TYPE_F32, 3, n_seqs, 1, 1, sources, rows ? 4 : ids ? 3 : 2, pick_op,
                                             (int) n_seqs, (void *) (intptr_t) step);
    cb(found, "mtp_pick", -1);
    ggml_tensor * row = ggml_cast(ctx0, ggml_view_2d(ctx0, found, 1, n_seqs, found->nb[1], 0), GGML_TYPE_I32);
    row               = ggml_reshape_1d(ctx0, row, n_seqs);
    ggml_tensor * pair = ggml_view_3d(ctx0, found, 2, 1, n_seqs, found->nb[1], found->nb[1], sizeof(float));
    return { row, token_of(row, tables), ggml_cont(ctx0, pair) };
}
#else
choice mtp_chain::coupled(ggml_tensor *, const draft_tables &, ggml_tensor *, int64_t) {
    throw std::runtime_error("this build cannot couple drafts");
}
#endif

} // namespace

std::unique_ptr<llm_graph_context> llama_model_qwen4exp::build_mtp_chain(const llama_model & model,
                                                                         const llm_graph_params & params) {
    return std::make_unique<mtp_chain>(model, params);
}

const char * lucebox::why_no_mtp_chain(const llama_context * ctx) {
    const llama_model &   model   = ctx->get_model();
    const llama_cparams & cparams = ctx->get_cparams();
    if (model.arch != LLM_ARCH_QWEN4EXP || cparams.ctx_type != LLAMA_CONTEXT_TYPE_MTP) {
        return "only the MTP block of qwen4exp has a graph for it";
    }
    const draft_tables tables = tables_of(model, cparams);
    if (model.d2t && tables.ids == nullptr) {
        return "the list of the tokens that the head covers is not on its device";
    }
    if (is_on_cpu(tables.embd) != is_on_cpu(tables.head) ||
        (!is_on_cpu(tables.embd) && device_of(tables.embd) != device_of(tables.head))) {
        return "the token embeddings are not on the device of the LM head; those of a draft vocabulary are";
    }
    return "";
}
