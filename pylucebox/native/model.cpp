// Opening a model with its MTP block, and what it tells of itself.
#include "internal.h"

#include "gguf.h"
#include "llama-model.h"
#include "model_checks.h"
#include "mtp_layouts.h"

#include <sys/stat.h>

#include <cstdlib>
#include <map>

namespace lucebox {

namespace {

// Written by the patch series: RMS groups of the norm that takes the hidden state into the MTP block.
const char * const KEY_HIDDEN_NORM_GROUPS = "qwen4exp.nextn_hidden_norm_groups";

// Names in files; OWN: of the MTP block, after the number of the block.
const char * const EMBEDDING     = "token_embd.weight";
const char * const OWN_EMBEDDING = "nextn.embed_tokens.weight";
const char * const HEAD          = "output.weight";
const char * const OWN_HEAD      = "nextn.shared_head_head.weight";
const char * const DRAFT_IDS     = "d2t";

// As in the Python reader (_gguf.py).
const int32_t MAX_SPLITS = 1024;

struct gguf_closer {
    void operator()(gguf_context * file) const { gguf_free(file); }
};

// What the header of a model file tells before anything is loaded.
struct file_facts {
    std::string arch;
    bool        has_embedding     = false;
    bool        has_head          = false;
    bool        has_mtp           = false;
    bool        covers_part       = false; // its LM head has rows for some tokens only
    uint32_t    n_hc              = 0;
    uint32_t    hidden_norm_groups = 0; // 0: the file does not say
    std::vector<std::string> files; // the file itself and its splits
    std::map<std::string, table_place> tables; // embeddings and LM heads by name, without the number of a block
};

void require_readable(const char * path, const char * what) {
    struct stat info;
    if (path == nullptr || path[0] == '\0') {
        fail(LUCEBOX_ERR_ARGUMENT, "no path was given for the %s", what);
    }
    if (stat(path, &info) != 0) {
        fail(LUCEBOX_ERR_IO, "the %s '%s' cannot be opened: %s", what, path, std::strerror(errno));
    }
    if (!S_ISREG(info.st_mode)) {
        fail(LUCEBOX_ERR_IO, "the %s '%s' is not a file", what, path);
    }
}

using gguf_ptr = std::unique_ptr<gguf_context, gguf_closer>;

gguf_ptr read_header(const char * path, const char * what) {
    require_readable(path, what);

    const log_capture capture;
    gguf_init_params  params = {};
    params.no_alloc          = true;
    gguf_ptr file(gguf_init_from_file(path, params));
    if (!file) {
        fail(LUCEBOX_ERR_FORMAT, "the %s '%s' is not a GGUF file: %s", what, path,
             capture.text_or("its header cannot be read").c_str());
    }
    return file;
}

// The other files of a split model whose first file this is, as upstream finds them. Whatever is wrong with the names
// or the count is upstream's to say.
std::vector<std::string> later_splits(const gguf_context * first, const char * path) {
    const int64_t id = gguf_find_key(first, "split.count");
    if (id < 0 || gguf_get_kv_type(first, id) != GGUF_TYPE_UINT16) {
        return {};
    }
    const int32_t     n = gguf_get_val_u16(first, id);
    std::vector<char> text(std::strlen(path) + 64);
    if (n < 2 || n > MAX_SPLITS || llama_split_prefix(text.data(), text.size(), path, 0, n) <= 0) {
        return {};
    }
    const std::string        prefix = text.data();
    std::vector<std::string> paths;
    for (int32_t i = 1; i < n; ++i) {
        llama_split_path(text.data(), text.size(), prefix.c_str(), i, n);
        paths.emplace_back(text.data());
    }
    return paths;
}

bool is_table(const std::string & part) {
    return part == EMBEDDING || part == OWN_EMBEDDING || part == HEAD || part == OWN_HEAD;
}

void add_tensor_facts(const gguf_context * file, const std::string & path, file_facts & facts) {
    for (int64_t i = 0; i < gguf_get_n_tensors(file); ++i) {
        const std::string name = gguf_get_tensor_name(file, i);
        const size_t      at   = name.find(".nextn.");
        const std::string part = at == std::string::npos ? name : name.substr(at + 1);
        facts.has_mtp |= at != std::string::npos;
        facts.has_embedding |= part == EMBEDDING || part == OWN_EMBEDDING;
        facts.has_head |= part == HEAD || part == OWN_HEAD;
        facts.covers_part |= name == DRAFT_IDS;
        if (is_table(part)) {
            facts.tables[part] = { path, gguf_get_data_offset(file) + gguf_get_tensor_offset(file, i),
                                   gguf_get_tensor_size(file, i), gguf_get_tensor_type(file, i) };
        }
    }
}

file_facts read_facts(const char * path, const char * what) {
    const gguf_ptr file = read_header(path, what);

    file_facts    facts;
    const int64_t arch_id = gguf_find_key(file.get(), "general.architecture");
    if (arch_id >= 0 && gguf_get_kv_type(file.get(), arch_id) == GGUF_TYPE_STRING) {
        facts.arch = gguf_get_val_str(file.get(), arch_id);
    }
    facts.files.emplace_back(path);
    require_sane_model(file.get(), facts.arch, path, what);
    add_tensor_facts(file.get(), path, facts);
    for (const std::string & split : later_splits(file.get(), path)) {
        const gguf_ptr other = read_header(split.c_str(), what);
        require_sane_tensors(other.get(), facts.arch, split.c_str(), what);
        add_tensor_facts(other.get(), split, facts);
        facts.files.push_back(split);
    }
    facts.n_hc               = read_u32(file.get(), "qwen4exp.hyper_connection.count");
    facts.hidden_norm_groups = read_u32(file.get(), KEY_HIDDEN_NORM_GROUPS);
    return facts;
}

struct load_hooks {
    lucebox_progress_callback callback;
    void *                    user_data;
    const model_files &       files;
    bool                      cancelled = false;
};

bool on_progress(float fraction, void * user_data) {
    load_hooks * hooks = (load_hooks *) user_data;
    if (!hooks->files.changed().empty()) {
        return false;
    }
    if (hooks->callback != nullptr && !hooks->callback(fraction, hooks->user_data)) {
        hooks->cancelled = true;
        return false;
    }
    return true;
}

// NULL-terminated, as upstream wants it; empty means every device.
std::vector<ggml_backend_dev_t> pick_devices(const char * name, bool & cpu_only) {
    cpu_only = false;
    if (name == nullptr || std::strcmp(name, "auto") == 0) {
        return {};
    }
    if (std::strcmp(name, "cpu") == 0) {
        cpu_only = true;
        return { nullptr };
    }
    ggml_backend_dev_t device = ggml_backend_dev_by_name(name);
    if (device == nullptr) {
        std::string known;
        for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
            known += (i ? ", " : "") + std::string(ggml_backend_dev_name(ggml_backend_dev_get(i)));
        }
        fail(LUCEBOX_ERR_BACKEND, "there is no device '%s'; the devices are: %s", name, known.c_str());
    }
    return { device, nullptr };
}

llama_model_ptr load(const lucebox_model_params & params, const char * path, bool load_mtp, uint32_t norm_groups,
                     load_hooks & hooks, const char * what) {
    bool cpu_only = false;
    auto devices  = pick_devices(params.device, cpu_only);

    llama_model_kv_override overrides[2] = {};
    if (norm_groups != 0) {
        overrides[0].tag = LLAMA_KV_OVERRIDE_TYPE_INT;
        std::snprintf(overrides[0].key, sizeof(overrides[0].key), "%s", KEY_HIDDEN_NORM_GROUPS);
        overrides[0].val_i64 = norm_groups;
    }

    llama_model_params mparams          = llama_model_default_params();
    mparams.devices                     = devices.empty() ? nullptr : devices.data();
    mparams.n_gpu_layers                = cpu_only ? 0 : params.n_gpu_layers;
    mparams.progress_callback           = on_progress;
    mparams.progress_callback_user_data = &hooks;
    mparams.kv_overrides                = norm_groups != 0 ? overrides : nullptr;
    mparams.load_mode                   = params.use_mmap ? LLAMA_LOAD_MODE_AUTO : LLAMA_LOAD_MODE_NONE;
    mparams.use_extra_bufts             = params.repack;
    mparams.check_tensors               = params.check_tensors;
    mparams.load_mtp                    = load_mtp;

    const log_capture capture;
    llama_model_ptr   model(llama_model_load_from_file(path, mparams));
    hooks.files.require_unchanged();
    if (hooks.cancelled) {
        fail(LUCEBOX_ERR_CANCELLED, "loading the %s '%s' was cancelled", what, path);
    }
    if (!model) {
        const std::string cause = capture.text_or("the loader gave no reason");
        fail(tells_of_memory(cause) ? LUCEBOX_ERR_MEMORY : LUCEBOX_ERR_FORMAT, "the %s '%s' cannot be loaded: %s", what, path,
             cause.c_str());
    }
    return model;
}

// The first of these tables that a file has, or one that is nowhere.
table_place first_of(const file_facts & facts, std::initializer_list<const char *> names) {
    for (const char * name : names) {
        const auto found = facts.tables.find(name);
        if (found != facts.tables.end()) {
            return found->second;
        }
    }
    return {};
}

std::vector<int32_t> draft_ids_of(const lucebox_model_params & params, int64_t n_vocab) {
    if (params.n_draft_ids == 0) {
        return {};
    }
    const int32_t *            first = &needed(params.draft_ids, "draft_ids");
    const std::vector<int32_t> ids(first, first + params.n_draft_ids);
    for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] < 0 || ids[i] >= n_vocab || (i > 0 && ids[i] <= ids[i - 1])) {
            fail(LUCEBOX_ERR_ARGUMENT, "entry %zu of draft_ids is %d; they must ascend and be in 0..%lld", i, ids[i],
                 (long long) n_vocab - 1);
        }
    }
    return ids;
}

// Rows of the LM head that the MTP block drafts from: those asked for, or those that its head has.
void choose_draft_rows(model_state & state, const lucebox_model_params & params, const file_facts & facts,
                       const file_facts & mtp_facts) {
    const std::vector<int32_t> ids = draft_ids_of(params, state.n_vocab());
    if (!ids.empty() && mtp_facts.covers_part) {
        fail(LUCEBOX_ERR_ARGUMENT, "draft_ids were given, but the head in '%s' covers only a part of the vocabulary",
             params.mtp_path);
    }
#ifdef LUCEBOX_DRAFT_ROWS
    const bool is_whole = ids.empty() && !mtp_facts.covers_part;
    if (is_whole && !draft_rows::embeddings_are_elsewhere(state.mtp_model(), state.trunk.get())) {
        return;
    }
    // in a model with a trunk the names of its own tables are not looked at, and the embeddings may serve as head
    const bool  is_sidecar = params.mtp_path != nullptr;
    table_place embd       = is_sidecar ? first_of(mtp_facts, { OWN_EMBEDDING, EMBEDDING }) : table_place{};
    table_place head       = is_sidecar ? first_of(mtp_facts, { OWN_HEAD, HEAD }) : table_place{};
    embd                   = embd.path.empty() ? first_of(facts, { EMBEDDING }) : embd;
    head                   = head.path.empty() ? first_of(facts, { HEAD, EMBEDDING }) : head;
    try {
        state.draft = std::make_unique<draft_rows>(state.mtp_model(), state.trunk.get(), head, embd, ids);
    } catch (const std::bad_alloc &) {
        if (is_whole) {
            return; // nobody asked for a copy: drafts look up where the table is
        }
        fail(LUCEBOX_ERR_MEMORY, "there is no memory for the %zu rows of the draft vocabulary", params.n_draft_ids);
    } catch (const std::runtime_error & e) {
        fail(LUCEBOX_ERR_IO, "the draft vocabulary cannot be set up: %s", e.what());
    }
#else
    if (!ids.empty()) {
        fail(LUCEBOX_ERR_ARGUMENT, "draft_ids were given, but this build's llama.cpp drafts from the whole head only");
    }
    (void) facts;
#endif
}

// Bytes of the tensors that were loaded and whose names begin like this.
uint64_t loaded_bytes(const llama_model & model, const std::string & prefix) {
    uint64_t n = 0;
    for (const auto & [name, tensor] : model.tensors_by_name) {
        n += name.compare(0, prefix.size(), prefix) == 0 ? ggml_nbytes(tensor) : 0;
    }
    return n;
}

uint32_t norm_groups_of(int32_t hidden_norm, const file_facts & facts) {
    switch (hidden_norm) {
        case LUCEBOX_HIDDEN_NORM_FILE:       return 0;
        case LUCEBOX_HIDDEN_NORM_FULL:       return 1;
        case LUCEBOX_HIDDEN_NORM_PER_STREAM: return facts.n_hc;
        default: fail(LUCEBOX_ERR_ARGUMENT, "hidden_norm is %d; it must be 0, 1 or 2", hidden_norm);
    }
}

void require_match(const model_state & state, const char * mtp_path) {
    const llama_model * trunk = state.trunk.get();
    const llama_model * mtp   = state.sidecar.get();

    const auto compare = [&](const char * field, int64_t of_model, int64_t of_mtp) {
        if (of_model != of_mtp) {
            fail(LUCEBOX_ERR_MISMATCH, "the MTP file '%s' does not belong to the model: %s is %lld there and %lld in the model",
                 mtp_path, field, (long long) of_mtp, (long long) of_model);
        }
    };
    compare("embedding length", llama_model_n_embd(trunk), llama_model_n_embd(mtp));
    compare("hidden state width", hidden_width(trunk), hidden_width(mtp));
    compare("vocabulary size", llama_vocab_n_tokens(llama_model_get_vocab(trunk)),
            llama_vocab_n_tokens(llama_model_get_vocab(mtp)));
}

std::shared_ptr<model_state> open_model(const lucebox_model_params & params) {
    auto             state = std::make_shared<model_state>();
    const file_facts facts = read_facts(params.path, "model");
    load_hooks       hooks = { params.progress, params.progress_user_data, state->files };

    if (params.mtp_in_file && params.mtp_path != nullptr) {
        fail(LUCEBOX_ERR_ARGUMENT, "mtp_in_file and mtp_path exclude each other");
    }
    if (params.mtp_in_file && !facts.has_mtp) {
        fail(LUCEBOX_ERR_MISMATCH, "the model '%s' holds no MTP block", params.path);
    }

    file_facts mtp_facts = facts;
    if (params.mtp_path != nullptr) {
        mtp_facts = read_facts(params.mtp_path, "MTP file");
        if (mtp_facts.arch != facts.arch) {
            fail(LUCEBOX_ERR_MISMATCH, "the MTP file '%s' is for architecture '%s', the model is '%s'",
                 params.mtp_path, mtp_facts.arch.c_str(), facts.arch.c_str());
        }
        if (!mtp_facts.has_mtp) {
            fail(LUCEBOX_ERR_MISMATCH, "the file '%s' holds no MTP block", params.mtp_path);
        }
    }
    const uint32_t groups = norm_groups_of(params.hidden_norm, mtp_facts);
    if (params.use_mmap) {
        for (const std::string & file : facts.files) {
            state->files.add(file);
        }
        for (const std::string & file : params.mtp_path != nullptr ? mtp_facts.files : std::vector<std::string>()) {
            state->files.add(file);
        }
    }

    state->trunk = load(params, params.path, params.mtp_in_file, params.mtp_in_file ? groups : 0, hooks, "model");
    if (llama_model_has_encoder(state->trunk.get()) || !llama_model_has_decoder(state->trunk.get())) {
        fail(LUCEBOX_ERR_FORMAT, "the model '%s' (%s) does not generate text", params.path, facts.arch.c_str());
    }
    if (params.mtp_path != nullptr) {
        {
            const without_own_head no_head(params.n_draft_ids > 0 && !mtp_facts.covers_part);
            state->sidecar = load(params, params.mtp_path, true, groups, hooks, "MTP file");
        }
        require_match(*state, params.mtp_path);
        state->mtp_source            = LUCEBOX_MTP_SIDECAR;
        state->mtp_borrows_embedding = !mtp_facts.has_embedding;
        state->mtp_borrows_head      = !mtp_facts.has_head;
    } else if (params.mtp_in_file) {
        state->mtp_source = LUCEBOX_MTP_IN_FILE;
    }
    if (state->mtp_source != LUCEBOX_MTP_NONE) {
        if (llama_model_n_layer_nextn(state->mtp_model()) != 1) {
            fail(LUCEBOX_ERR_FORMAT, "%d MTP blocks were found; this build runs models with one",
                 llama_model_n_layer_nextn(state->mtp_model()));
        }
        const uint32_t in_force = groups != 0 ? groups : std::max(1u, mtp_facts.hidden_norm_groups);
        state->hidden_norm      = in_force == 1 ? LUCEBOX_HIDDEN_NORM_FULL : LUCEBOX_HIDDEN_NORM_PER_STREAM;
        choose_draft_rows(*state, params, facts, mtp_facts);
    }

    // a broken template must not keep anybody from plain completion
    try {
        if (llama_model_chat_template(state->trunk.get(), nullptr) != nullptr) {
            state->templates = common_chat_templates_init(state->trunk.get(), "");
        } else {
            state->templates_error = "the model file has no chat template";
        }
    } catch (const std::exception & e) {
        state->templates_error = std::string("the chat template of the model file cannot be read: ") + e.what();
    }
    return state;
}

} // namespace

} // namespace lucebox

using namespace lucebox;

void lucebox_model_params_init(lucebox_model_params * params) {
    if (params == nullptr) {
        return;
    }
    *params              = {};
    params->struct_size  = sizeof(*params);
    params->n_gpu_layers = -1;
    params->use_mmap     = true;
    params->repack       = true;
}

lucebox_status lucebox_model_open(const lucebox_model_params * params, lucebox_model ** out) {
    return guarded([&] {
        needed(out, "out") = nullptr;
        const auto taken = take_params(params, lucebox_model_params_init);
        auto       model = std::make_unique<lucebox_model>();
        model->state     = open_model(taken);
        *out             = model.release();
    });
}

void lucebox_model_close(lucebox_model * model) {
    delete model;
}

lucebox_status lucebox_model_get_info(const lucebox_model * model, lucebox_model_info * info) {
    return guarded([&] {
        const model_state & state   = *needed(model, "model").state;
        const llama_model * trunk   = state.trunk.get();
        const bool          has_mtp = state.mtp_source != LUCEBOX_MTP_NONE;
        lucebox_model_info  found   = {};
        found.n_vocab               = state.n_vocab();
        found.n_ctx_train           = llama_model_n_ctx_train(trunk);
        found.n_embd                = llama_model_n_embd(trunk);
        found.n_embd_out            = hidden_width(trunk);
        found.n_layer               = llama_model_n_layer(trunk);
        found.n_layer_nextn         = has_mtp ? llama_model_n_layer_nextn(state.mtp_model()) : 0;
        found.mtp_source            = state.mtp_source;
        found.hidden_norm           = state.hidden_norm;
        found.mtp_borrows_embedding = state.mtp_borrows_embedding;
        found.mtp_borrows_head      = state.mtp_borrows_head;
        found.n_params              = llama_model_n_params(trunk);
        found.size_bytes            = llama_model_size(trunk);
        found.mtp_size_bytes        = state.sidecar ? loaded_bytes(*state.sidecar, "") : 0;
        found.n_draft_vocab         = has_mtp ? found.n_vocab : 0;
        if (has_mtp) {
            const llama_model & mtp = *state.mtp_model();
            found.mtp_block_bytes   = loaded_bytes(mtp, "blk." + std::to_string(mtp.hparams.n_layer()) + ".");
        }
        if (state.draft) {
            found.n_draft_vocab    = (int32_t) state.draft->n_tokens();
            found.draft_rows_bytes = state.draft->n_bytes();
        }
        give_result(info, found);
    });
}

lucebox_status lucebox_model_meta(const lucebox_model * model, const char * key, char ** out_text) {
    return guarded([&] {
        needed(key, "key");
        needed(out_text, "out_text");
        const llama_model * trunk = needed(model, "model").state->trunk.get();
        std::string         text(256, '\0');
        int32_t             n = llama_model_meta_val_str(trunk, key, text.data(), text.size());
        if (n < 0) {
            fail(LUCEBOX_ERR_ARGUMENT, "the model has no metadata key '%s'", key);
        }
        if ((size_t) n >= text.size()) {
            text.resize((size_t) n + 1);
            n = llama_model_meta_val_str(trunk, key, text.data(), text.size());
        }
        text.resize((size_t) n);
        *out_text = copy_string(text);
    });
}
