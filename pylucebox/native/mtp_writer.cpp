// Writes the K/V of the MTP block inside the trunk's graph. Compiled into libllama, which calls it; see
// patches/mtp-kv-in-trunk.patch.
//
// The trunk runs over token p of a sequence. That completes the pair of its state after p - 1 and token p, whose K, V
// and index key go into the block's cache at p - 1. Within a ubatch the state is that of the row before; in front of a
// sequence's first row it is the last state of an earlier ubatch, carried on the device. As many states are carried as
// the trunk can take tokens back, each in the slot that its position names, so that a rollback needs nothing but the
// position it went back to.
#include "lucebox-mtp-writer.h"

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-graph.h"
#include "llama-impl.h"
#include "llama-memory-hybrid-idx.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"
#include "models/models.h"
#include "mtp_pairs.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

llama_model_qwen4exp::graph_mtp_kv::graph_mtp_kv(const llama_model & model, const llm_graph_params & params,
                                                 llm_graph_input_attn_kv * inp_attn, ggml_tensor * embd,
                                                 ggml_tensor * hidden) :
    graph(model, params, no_build{}) {
    const int    il       = hparams.n_layer();
    const auto & layer    = model.layers[il];
    const auto * mctx_hyb = static_cast<const llama_memory_hybrid_idx_context *>(mctx);
    const auto * mctx_kv  = mctx_hyb->get_attn();

    int sections[4];
    std::copy(std::begin(hparams.rope_sections), std::begin(hparams.rope_sections) + 4, sections);

    inp_attn->self_k_idxs = mctx_kv->build_input_k_idxs(ctx0, ubatch);
    inp_attn->self_v_idxs = mctx_kv->build_input_v_idxs(ctx0, ubatch);
    inp_attn->self_k_rot  = mctx_kv->build_input_k_rot(ctx0);
    inp_attn->self_v_rot  = mctx_kv->build_input_v_rot(ctx0);
    ggml_tensor * inp_pos = build_inp_pos();

    ggml_tensor * cur = build_mtp_streams(embd, hidden, il);
    cur = build_hc_mix(cur, layer.hc_attn_norm, layer.hc_attn_down, layer.hc_attn_up, nullptr, nullptr, il);

    if (mctx_hyb->get_idx() && hparams.dsv4_compress_ratios[il] > 0) {
        build_qsa_keys(mctx_hyb, build_inp_kpool(mctx_hyb), cur, sections, il);
    }

    auto [k, v] = build_layer_kv(cur, inp_pos, sections, il);
    if (inp_attn->self_k_rot) {
        k = llama_mul_mat_hadamard(ctx0, k, inp_attn->self_k_rot);
    }
    if (inp_attn->self_v_rot) {
        v = llama_mul_mat_hadamard(ctx0, v, inp_attn->self_v_rot);
    }
    ggml_build_forward_expand(gf, v);
    ggml_build_forward_expand(gf, k);
    ggml_build_forward_expand(gf, mctx_kv->cpy_k(ctx0, k, inp_attn->self_k_idxs, il));
    ggml_build_forward_expand(gf, mctx_kv->cpy_v(ctx0, v, inp_attn->self_v_idxs, il));
}

namespace lucebox {

namespace {

class writer final : public mtp_writer {
  public:
    writer(llama_context & trunk, llama_context & mtp, llama_memory_hybrid_idx & memory);
    ~writer() override;

    void   reserve(const llama_ubatch & ubatch) override;
    bool   begin(const llama_ubatch & ubatch) override;
    void   end(bool computed) override;
    bool   active() const override { return !pairs.members.empty(); }
    uint32_t n_pairs() const override { return pairs.n_pairs(); }
    void   look_up(const llm_graph_params & trunk_params) override;
    void   build(const llm_graph_params & trunk_params, ggml_tensor * embd, ggml_tensor * hidden) override;
    void   enable(llama_seq_id seq, bool on) override;
    void   defer(llama_seq_id seq, bool on) override { deferred.at((size_t) seq) = on; }
    bool   get_hidden(llama_seq_id seq, llama_pos pos, float * out) const override;
    void   set_hidden(llama_seq_id seq, llama_pos pos, const float * hidden) override;
    size_t n_bytes() const override { return ggml_backend_buffer_get_size(buffer.get()); }

  private:
    class input;

    void    forget_states(llama_seq_id seq);
    bool    find_pairs(const llama_ubatch & ubatch);
    bool    find_cells(const llama_ubatch & ubatch);
    int32_t slot_of(llama_seq_id seq, llama_pos pos) const { return seq * n_slots + pos % n_slots; }

    llama_context &           trunk;
    llama_memory_hybrid_idx & memory;
    const llama_model &       model; // that holds the block
    const int32_t             n_slots;
    const int64_t             width; // floats of a state

    ggml_context_ptr        ctx;
    ggml_backend_buffer_ptr buffer;
    ggml_tensor *           states; // F32 [width, n_slots * n_seq]

    std::vector<llama_pos> positions; // of the state in each slot, or -1
    std::vector<bool>      enabled;
    std::vector<bool>      deferred;

    pairs_of_ubatch                                  pairs;
    first_tokens                                     firsts;
    llama_memory_context_ptr                         cells;
    llm_graph_params                                 params; // as the block's own context would have them
    ggml_tensor *                                    tokens = nullptr; // of the pairs, in the graph that is being built
    ggml_tensor *                                    looked_up = nullptr; // their embeddings; null if the trunk's do
};

// All inputs of the part of the graph that writes.
class writer::input : public llm_graph_input_i {
  public:
    input(writer & w) : w(w), attn(w.params.hparams, w.params.cparams, nullptr) {}

    void set_input(const llama_ubatch *) override {
        set(members, w.pairs.members.data());
        set(carried, w.pairs.carried.data());
        set(kept, w.pairs.kept.data());
        if (n_pairs == 0) {
            return;
        }
        set(tokens, w.params.ubatch.token);
        attn.set_input(&w.params.ubatch);
        for (auto & each : others) {
            each->set_input(&w.params.ubatch);
        }
    }

    // the number of sequences and of tokens has been compared
    bool can_reuse(const llm_graph_params &) override {
        if (w.pairs.members.size() != n_members || w.pairs.n_pairs() != n_pairs) {
            return false;
        }
        if (n_pairs == 0) {
            return true;
        }
        attn.mctx = static_cast<const llama_memory_hybrid_idx_context *>(w.params.mctx)->get_attn();
        return std::all_of(others.begin(), others.end(), [&](auto & each) { return each->can_reuse(w.params); });
    }

    writer &                         w;
    size_t                           n_members = 0;
    uint32_t                         n_pairs   = 0;
    ggml_tensor *                    members   = nullptr; // I32 [n_members], null if all sequences are
    ggml_tensor *                    carried   = nullptr; // I32 [n_members], null without pairs
    ggml_tensor *                    kept      = nullptr; // I64 [n_kept*n_members]
    ggml_tensor *                    tokens    = nullptr; // I32 [n_pairs], null if the trunk's embeddings do
    llm_graph_input_attn_kv          attn;
    std::vector<llm_graph_input_ptr> others;

  private:
    static void set(ggml_tensor * tensor, const void * data) {
        if (tensor) {
            ggml_backend_tensor_set(tensor, data, 0, ggml_nbytes(tensor));
        }
    }
};

writer::writer(llama_context & trunk, llama_context & mtp, llama_memory_hybrid_idx & memory) :
    trunk(trunk),
    memory(memory),
    model(mtp.get_model()),
    n_slots((int32_t) trunk.get_cparams().n_rs_seq + 1),
    width(model.hparams.n_embd_nextn()),
    positions((size_t) n_slots * trunk.get_cparams().n_seq_max, -1),
    enabled(trunk.get_cparams().n_seq_max, false),
    deferred(trunk.get_cparams().n_seq_max, false) {
    ctx.reset(ggml_init({ ggml_tensor_overhead(), nullptr, /*no_alloc=*/true }));
    if (!ctx) {
        throw std::bad_alloc();
    }
    states = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, width, (int64_t) positions.size());
    ggml_set_name(states, "mtp_carried_states");
    const ggml_tensor * k = memory.get_mem_attn()->get_k_storage(model.hparams.n_layer());
    buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), ggml_backend_buffer_get_type(k->buffer)));
    if (!buffer) {
        throw std::bad_alloc();
    }
    ggml_backend_buffer_clear(buffer.get(), 0);

    params.arch        = model.arch;
    params.hparams     = model.hparams;
    params.cparams     = mtp.get_cparams();
    params.gtype       = LLM_GRAPH_TYPE_DECODER_MTP;
    params.prec_policy = &model.prec_policy;
    params.n_outputs   = 0;
    // not the trunk's, which looks up the device of a layer that only the block's file may have
    params.cb = [](const llama_ubatch &, ggml_tensor * cur, const char * name, int il) {
        ggml_format_name(cur, "mtp_kv_%s-%d", name, il);
    };

    trunk.set_mtp_writer(this);
    trunk.sched_reserve(); // memory for it is to be had now or never
}

writer::~writer() {
    trunk.set_mtp_writer(nullptr);
}

void writer::enable(llama_seq_id seq, bool on) {
    enabled.at((size_t) seq) = on;
    deferred[(size_t) seq]   = false;
    forget_states(seq);
}

void writer::forget_states(llama_seq_id seq) {
    std::fill_n(positions.begin() + (ptrdiff_t) seq * n_slots, n_slots, -1);
}

bool writer::get_hidden(llama_seq_id seq, llama_pos pos, float * out) const {
    if (pos < 0 || positions.at((size_t) slot_of(seq, pos)) != pos) {
        return false;
    }
    ggml_backend_tensor_get(states, out, (size_t) slot_of(seq, pos) * states->nb[1], states->nb[1]);
    return true;
}

void writer::set_hidden(llama_seq_id seq, llama_pos pos, const float * hidden) {
    ggml_backend_tensor_set(states, hidden, (size_t) slot_of(seq, pos) * states->nb[1], states->nb[1]);
    positions.at((size_t) slot_of(seq, pos)) = pos;
}

void writer::reserve(const llama_ubatch & ubatch) {
    pairs          = {};
    pairs.n_seqs   = ubatch.n_seqs;
    pairs.n_tokens = ubatch.n_seq_tokens;
    for (uint32_t s = 0; s < ubatch.n_seqs; ++s) {
        pairs.members.push_back((int32_t) s);
    }
    cells         = memory.init_full();
    params.mctx   = cells.get();
    params.ubatch = ubatch;
}

bool writer::begin(const llama_ubatch & ubatch) {
    pairs = {};
    cells.reset();
    return find_pairs(ubatch) && find_cells(ubatch);
}

// Which sequences of the ubatch are written for, and where their states come from and go to.
bool writer::find_pairs(const llama_ubatch & ubatch) {
    const uint32_t n = ubatch.n_seq_tokens;
    firsts.clear();
    for (uint32_t s = 0; s < ubatch.n_seqs; ++s) {
        const llama_seq_id seq   = ubatch.seq_id[s * n][0];
        const llama_pos    first = ubatch.pos[s * n];
        if ((size_t) seq >= enabled.size() || !enabled[(size_t) seq]) {
            continue;
        }
        bool in_order = ubatch.token && !ubatch.is_mixed() && ubatch.equal_seqs();
        for (uint32_t i = 0; in_order && i < n; ++i) {
            in_order = ubatch.pos[s * n + i] == first + (llama_pos) i && ubatch.n_seq_id[s * n + i] == 1;
        }
        if (!in_order && deferred[(size_t) seq]) { // as with pictures: there are no pairs, now or later
            forget_states(seq);
            continue;
        }
        const bool alike = firsts.empty() || (pairs.starts == (first == 0) && pairs.deferred == deferred[(size_t) seq]);
        if (!in_order || !alike) {
            LLAMA_LOG_ERROR("%s: sequence %d: %s\n", __func__, seq,
                            alike ? "only texts in order are written for" :
                                    "it begins or leaves pairs to the block, and others of the same pass do not");
            return false;
        }
        pairs.starts   = first == 0;
        pairs.deferred = deferred[(size_t) seq];
        pairs.carried.push_back(slot_of(seq, std::max(first - 1, 0)));
        if (!pairs.deferred && first > 0 && positions[(size_t) pairs.carried.back()] != first - 1) {
            LLAMA_LOG_ERROR("%s: sequence %d: the state after position %d is not at hand\n", __func__, seq, first - 1);
            return false;
        }
        for (uint32_t i = n - std::min<uint32_t>(n, (uint32_t) n_slots); i < n; ++i) {
            pairs.kept.push_back(slot_of(seq, first + (llama_pos) i));
        }
        firsts.emplace_back(seq, first);
        pairs.members.push_back((int32_t) s);
    }
    pairs.n_seqs   = ubatch.n_seqs;
    pairs.n_tokens = n;
    return true;
}

// The cells are those that the block's own context would take.
bool writer::find_cells(const llama_ubatch & ubatch) {
    if (pairs.n_pairs() == 0) {
        return true;
    }
    for (const auto & [seq, first] : firsts) {
        const llama_pos at  = std::max(first - 1, 0); // of the first pair
        const llama_pos end = memory.get_mem_attn()->seq_pos_max(seq); // or -1: what came before is not known
        if (end >= 0 && end != at - 1) {
            LLAMA_LOG_ERROR("%s: sequence %d: the block's cache ends at position %d, not at %d\n", __func__, seq, end,
                            at - 1);
            return false;
        }
    }
    params.ubatch = ubatch_of_pairs(pairs, firsts, ubatch);
    const std::vector<llama_ubatch> ubatches{ params.ubatch };
    if (!memory.get_mem_recr()->prepare(ubatches)) {
        LLAMA_LOG_ERROR("%s: the block's memory has no place for %u sequences\n", __func__, params.ubatch.n_seqs);
        return false;
    }
    const auto places = memory.get_mem_attn()->prepare(ubatches);
    if (places.empty()) {
        LLAMA_LOG_ERROR("%s: the block's cache has no cells for %u tokens\n", __func__, params.ubatch.n_tokens);
        return false;
    }
    cells = std::make_unique<llama_memory_hybrid_idx_context>(
        &memory, places, memory.get_mem_idx() ? places : llama_kv_cache::slot_info_vec_t(), ubatches);
    params.mctx = cells.get();
    return cells->apply();
}

void writer::end(bool computed) {
    const size_t n_kept = pairs.members.empty() ? 0 : pairs.kept.size() / pairs.members.size();
    for (size_t m = 0; m < firsts.size(); ++m) {
        const auto [seq, first] = firsts[m];
        if (!computed) {
            forget_states(seq); // nothing that is carried can be trusted
            memory.seq_rm(seq, std::max(first - 1, 0), -1);
            continue;
        }
        for (size_t i = 0; i < n_kept; ++i) {
            positions[(size_t) pairs.kept[m * n_kept + i]] = first + (llama_pos) (pairs.n_tokens - n_kept + i);
        }
    }
    if (computed && cells) {
        cells->next(); // only now are the edits that the index has to follow taken note of
    }
    firsts.clear();
}

void writer::look_up(const llm_graph_params & trunk_params) {
    tokens    = nullptr;
    looked_up = nullptr;
    if (pairs.n_pairs() == 0 || !model.tok_embd || model.tok_embd == trunk.get_model().tok_embd) {
        return;
    }
    ggml_context * ctx0 = trunk_params.res->get_ctx();
    tokens              = ggml_new_tensor_1d(ctx0, GGML_TYPE_I32, pairs.n_pairs());
    ggml_set_input(tokens);
    looked_up = ggml_get_rows(ctx0, model.tok_embd, tokens);
    ggml_build_forward_expand(trunk_params.res->get_gf(), looked_up);
}

// The block needs nothing of the graph's scheduler but that it is the trunk's.
void writer::build(const llm_graph_params & trunk_params, ggml_tensor * embd, ggml_tensor * hidden) {
    llm_graph_result * res  = trunk_params.res;
    ggml_context *     ctx0 = res->get_ctx();
    ggml_cgraph *      gf   = res->get_gf();

    const int64_t n_members = (int64_t) pairs.members.size();
    const int64_t n_tokens  = pairs.n_tokens;
    const int64_t n_each    = pairs.n_pairs_each();
    const int64_t n_kept    = std::min<int64_t>(n_tokens, n_slots);

    auto inp       = std::make_unique<input>(*this);
    inp->n_members = pairs.members.size();
    inp->n_pairs   = pairs.n_pairs();
    const auto new_input = [&](ggml_type type, int64_t n) {
        ggml_tensor * made = ggml_new_tensor_1d(ctx0, type, n);
        ggml_set_input(made);
        return made;
    };
    if (n_members < (int64_t) pairs.n_seqs) {
        inp->members = new_input(GGML_TYPE_I32, n_members);
    }

    // Only numbers depend on how many tokens there are and whether the sequences start: a graph of other nodes would be
    // allocated anew, and might take more memory than was reserved.
    const auto of_members = [&](ggml_tensor * all) {
        const int64_t n_floats = all->ne[0];
        if (inp->members) {
            all = ggml_get_rows(ctx0, ggml_reshape_2d(ctx0, all, n_floats * n_tokens, pairs.n_seqs), inp->members);
        }
        return ggml_reshape_3d(ctx0, all, n_floats, n_tokens, n_members);
    };
    // rows [begin, begin + n) of each member
    const auto rows_of = [&](ggml_tensor * all, int64_t begin, int64_t n) {
        ggml_tensor * rows =
            ggml_view_3d(ctx0, all, all->ne[0], n, n_members, all->nb[1], all->nb[2], (size_t) begin * all->nb[1]);
        return ggml_reshape_2d(ctx0, n_members > 1 ? ggml_cont(ctx0, rows) : rows, all->ne[0], n * n_members);
    };
    hidden = of_members(hidden);

    if (n_each > 0) {
        inp->carried          = new_input(GGML_TYPE_I32, n_members);
        ggml_tensor * carried = ggml_get_rows(ctx0, states, inp->carried);
        ggml_build_forward_expand(gf, carried); // before its slot gets another state
        carried = ggml_reshape_3d(ctx0, carried, width, 1, n_members);
        // the state in front of each token that completes a pair
        ggml_tensor * before = rows_of(ggml_concat(ctx0, carried, hidden, 1), n_tokens - n_each, n_each);
        inp->tokens = tokens;
        embd        = looked_up ? looked_up : rows_of(of_members(embd), n_tokens - n_each, n_each);
        params.res         = res;
        params.sched       = trunk_params.sched;
        params.backend_cpu = trunk_params.backend_cpu;
        params.cvec        = trunk_params.cvec;
        params.loras       = trunk_params.loras;
        params.cross       = trunk_params.cross;

        const size_t n_inputs = res->inputs.size();
        inp->attn.mctx        = static_cast<const llama_memory_hybrid_idx_context *>(params.mctx)->get_attn();
        llama_model_qwen4exp::graph_mtp_kv(model, params, &inp->attn, embd, before);
        // these are about the pairs, not about the trunk's ubatch
        inp->others.assign(std::make_move_iterator(res->inputs.begin() + (ptrdiff_t) n_inputs),
                           std::make_move_iterator(res->inputs.end()));
        res->inputs.resize(n_inputs);
        res->set_params(trunk_params);
    }

    inp->kept = new_input(GGML_TYPE_I64, n_kept * n_members);
    ggml_build_forward_expand(
        gf, ggml_set_rows(ctx0, states, rows_of(hidden, n_tokens - n_kept, n_kept), inp->kept));
    res->add_input(std::move(inp));
}

// Whether a graph of `trunk` can compute with a tensor that lies there.
bool is_at_hand(const llama_context & trunk, const ggml_tensor * tensor) {
    const ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(tensor->buffer));
    if (!device || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU) {
        return true;
    }
    const auto & devices = trunk.get_model().devices;
    return std::any_of(devices.begin(), devices.end(), [&](const auto & each) { return each.dev == device; });
}

} // namespace

std::unique_ptr<mtp_writer> make_mtp_writer(llama_context * trunk, llama_context * mtp, std::string & why_not) {
    const llama_model &   model  = mtp->get_model();
    const llama_cparams & own    = mtp->get_cparams();
    const llama_cparams & trunks = trunk->get_cparams();
    if (model.arch != LLM_ARCH_QWEN4EXP || trunk->get_model().arch != LLM_ARCH_QWEN4EXP) {
        why_not = "the architecture is not qwen4exp";
        return nullptr;
    }
    auto * memory = dynamic_cast<llama_memory_hybrid_idx *>(mtp->get_memory());
    if (!memory || own.kv_unified || trunks.kv_unified || own.n_seq_max != trunks.n_seq_max) {
        why_not = "the block's cache is not split by sequence as the model's is";
        return nullptr;
    }
    if (trunks.pipeline_parallel) {
        why_not = "the model runs as a pipeline over several devices";
        return nullptr;
    }
    const int    il    = model.hparams.n_layer();
    const auto & layer = model.layers[il];
    for (const ggml_tensor * tensor : { layer.nextn.eh_proj, layer.hc_attn_down, layer.wk, layer.wv,
                                        memory->get_mem_attn()->get_k_storage(il) }) {
        if (!is_at_hand(*trunk, tensor)) {
            why_not = "the MTP block is on a device that the model does not use";
            return nullptr;
        }
    }
    return std::make_unique<writer>(*trunk, *mtp, *memory);
}

} // namespace lucebox
