#include "model_checks.h"

#include "internal.h"

#include "llama-hparams.h"

#include <cmath>
#include <unordered_set>

namespace lucebox {

namespace {

// More than any model has, and little enough that no product of two of them leaves 32 bits: upstream multiplies them
// as they come, and a count that overflows to the right size would pass for it.
struct limit {
    const char * key;
    uint32_t     low;
    uint32_t     high;
};

const limit LIMITS[] = {
    { ".embedding_length",                  1, 1 << 16 },
    { ".attention.head_count",              1, 1 << 12 },
    { ".attention.head_count_kv",           1, 1 << 12 },
    { ".attention.key_length",              2, 1 << 12 },
    { ".attention.value_length",            1, 1 << 12 },
    { ".attention.indexer.head_count",      1, 1 << 12 },
    { ".attention.indexer.key_length",      2, 1 << 12 },
    { ".attention.indexer.top_k",           1, 1 << 20 },
    { ".ssm.conv_kernel",                   1, 1 << 8  },
    { ".ssm.state_size",                    1, 1 << 12 },
    { ".ssm.time_step_rank",                1, 1 << 12 },
    { ".ssm.group_count",                   1, 1 << 12 },
    { ".hyper_connection.count",            2, 1 << 6  },
    { ".hyper_connection.low_rank",         1, 1 << 16 },
    { ".expert_feed_forward_length",        1, 1 << 20 },
    { ".expert_shared_feed_forward_length", 0, 1 << 20 },
    { ".ple.conv_kernel",                   1, 1 << 8  },
    { ".ple.heads_per_ngram",               1, 1 << 12 },
    { ".embedding_length_per_layer_input",  0, 1 << 16 },
};

const char * const ROPE_SCALINGS[] = { "none", "linear", "yarn", "longrope" };

class checker {
  public:
    checker(const gguf_context * file, const std::string & arch, const char * path, const char * what) :
        file(file), arch(arch), path(path), what(what) {}

    bool has(const char * key) const { return gguf_find_key(file, (arch + key).c_str()) >= 0; }

    uint32_t value(const char * key) const { return read_u32(file, arch + key); }

    // a list per layer is upstream's to check
    bool is_number(const char * key) const {
        const int64_t id = gguf_find_key(file, (arch + key).c_str());
        return id >= 0 && gguf_get_kv_type(file, id) == GGUF_TYPE_UINT32;
    }

    std::string text(const std::string & key) const {
        const int64_t id = gguf_find_key(file, key.c_str());
        return id >= 0 && gguf_get_kv_type(file, id) == GGUF_TYPE_STRING ? gguf_get_val_str(file, id) : "";
    }

    void range(const char * key, uint32_t low, uint32_t high) const {
        require(value(key) >= low && value(key) <= high,
                arch + key + " is " + std::to_string(value(key)) + ", which is not in " + std::to_string(low) + ".." +
                    std::to_string(high));
    }

    void require(bool holds, const std::string & problem) const {
        if (!holds) {
            fail(LUCEBOX_ERR_FORMAT, "the %s '%s' is damaged: %s", what, path, problem.c_str());
        }
    }

    void counts() const {
        range(".block_count", 1, LLAMA_MAX_LAYERS);
        range(".context_length", MIN_N_CTX, INT32_MAX);
        range(".nextn_predict_layers", 0, value(".block_count"));
        range(".expert_count", 0, LLAMA_MAX_EXPERTS);
        if (!has(".expert_used_count") || is_number(".expert_used_count")) {
            range(".expert_used_count", value(".expert_count") > 0 ? 1 : 0, value(".expert_count"));
        }
        const uint32_t n_groups = value(".expert_group_count");
        if (n_groups > 0) {
            range(".expert_group_count", 1, std::max(value(".expert_count"), 2u) - 1);
            require(value(".expert_count") % n_groups == 0, arch + ".expert_group_count does not divide the experts");
        }
        if (n_groups > 1) {
            range(".expert_group_used_count", 1, n_groups - 1);
        }
    }

    void limits() const {
        for (const limit & entry : LIMITS) {
            if (is_number(entry.key)) {
                range(entry.key, entry.low, entry.high);
            }
        }
    }

    void rope_scaling() const {
        const std::string kind = text(arch + ".rope.scaling.type");
        const bool known = std::any_of(std::begin(ROPE_SCALINGS), std::end(ROPE_SCALINGS),
                                       [&](const char * name) { return kind == name; });
        require(known || !has(".rope.scaling.type"), arch + ".rope.scaling.type is '" + kind + "'");
    }

    void norm_epsilon() const {
        const int64_t id = gguf_find_key(file, (arch + ".attention.layer_norm_rms_epsilon").c_str());
        if (id >= 0 && gguf_get_kv_type(file, id) == GGUF_TYPE_FLOAT32) {
            const float epsilon = gguf_get_val_f32(file, id);
            require(std::isfinite(epsilon) && epsilon >= 0.0f, "the epsilon of its norms is not a number from 0 on");
        }
    }

    void rope() const {
        // what upstream takes when a key is absent
        const uint32_t head  = has(".attention.key_length") ? value(".attention.key_length") :
                                                              value(".embedding_length") /
                                                                  std::max(value(".attention.head_count"), 1u);
        const uint32_t n_rot = has(".rope.dimension_count") ? value(".rope.dimension_count") : head;
        // the keys of the index are rotated as well
        const uint32_t n_max = std::min(head, value(".attention.indexer.key_length"));
        require(n_rot % 2 == 0 && n_rot >= 2 && n_rot <= n_max,
                "its rope turns " + std::to_string(n_rot) + " of " + std::to_string(n_max) + " dimensions");
        const int64_t id = gguf_find_key(file, (arch + ".rope.dimension_sections").c_str());
        if (id < 0 || gguf_get_kv_type(file, id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(file, id) != GGUF_TYPE_INT32) {
            return;
        }
        const auto * sections = (const int32_t *) gguf_get_arr_data(file, id);
        int64_t      sum      = 0;
        for (size_t i = 0; i < gguf_get_arr_n(file, id); ++i) {
            require(sections[i] >= 0 && sections[i] <= (int32_t) n_rot, "a section of its rope is out of range");
            sum += sections[i];
        }
        require(sum > 0 && sum * 2 <= (int64_t) n_rot, "the sections of its rope do not fit its dimensions");
    }

    // Layers with full attention are sparse together or dense together. An MTP block may be dense under a sparse trunk,
    // and sparse under a dense one.
    void compress_ratios() const {
        const int64_t id = gguf_find_key(file, (arch + ".attention.compress_ratios").c_str());
        if (id < 0 || gguf_get_kv_type(file, id) != GGUF_TYPE_ARRAY || gguf_get_arr_n(file, id) < value(".block_count") ||
            (gguf_get_arr_type(file, id) != GGUF_TYPE_INT32 && gguf_get_arr_type(file, id) != GGUF_TYPE_UINT32)) {
            return; // a single value holds for all layers; what is no list of numbers is upstream's to refuse
        }
        const auto * ratios = (const uint32_t *) gguf_get_arr_data(file, id);
        const auto   trunk  = value(".block_count") - value(".nextn_predict_layers");
        int64_t      first  = -1;
        for (uint32_t layer = 0; layer < value(".block_count"); ++layer) {
            if (is_recurrent(layer) || (layer >= trunk && (ratios[layer] == 0 || first == 0))) {
                continue;
            }
            first = first < 0 ? ratios[layer] : first;
            require(ratios[layer] == first, "its compress ratios differ: " + std::to_string(first) + " and " +
                                                std::to_string(ratios[layer]) + " in layer " + std::to_string(layer));
        }
    }

    void delta_net() const {
        const uint64_t wanted = (uint64_t) value(".ssm.state_size") * value(".ssm.time_step_rank");
        require(value(".ssm.inner_size") == wanted, arch + ".ssm.inner_size is not state size times heads");
        require(value(".ssm.time_step_rank") % std::max(value(".ssm.group_count"), 1u) == 0,
                arch + ".ssm.group_count does not divide the heads");
    }

    void ngrams() const {
        if (!has(".ple.ngram_size")) {
            return;
        }
        const uint64_t heads = (uint64_t) (std::max(value(".ple.ngram_size"), 1u) - 1) * value(".ple.heads_per_ngram");
        require(heads * value(".embedding_length_per_layer_input") == value(".embedding_length"),
                "its n-gram heads do not add up to the embedding length");
    }

    void vocabulary() const {
        require(text("tokenizer.ggml.model") == "gpt2",
                "its tokenizer is '" + text("tokenizer.ggml.model") + "', not 'gpt2'");
        const int64_t id = gguf_find_key(file, "tokenizer.ggml.tokens");
        if (id < 0 || gguf_get_kv_type(file, id) != GGUF_TYPE_ARRAY || gguf_get_arr_type(file, id) != GGUF_TYPE_STRING) {
            return;
        }
        std::unordered_set<std::string> seen;
        for (size_t i = 0; i < gguf_get_arr_n(file, id); ++i) {
            const char * token = gguf_get_arr_str(file, id, i);
            require(seen.insert(token).second, std::string("the token '") + token + "' is in its vocabulary twice");
        }
    }

    void tensor_types() const {
        for (int64_t i = 0; i < gguf_get_n_tensors(file); ++i) {
            const enum ggml_type type = gguf_get_tensor_type(file, i);
            const char *         name = gguf_get_tensor_name(file, i);
            if (std::strcmp(name, "d2t") == 0) {
                continue; // a list of token ids, checked where it is loaded
            }
            const bool floats = type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
            require(floats || ggml_is_quantized(type),
                    std::string("the tensor ") + name + " is of type " + ggml_type_name(type) + ", which no weight is");
            require(floats || std::strstr(name, "norm") == nullptr,
                    std::string("the norm ") + name + " is quantised as " + ggml_type_name(type) +
                        "; quantise again with --tensor-type '.*norm.*=f32'");
        }
    }

  private:
    // As upstream works it out: from the list, else from the interval; MTP blocks have full attention.
    bool is_recurrent(uint32_t layer) const {
        const int64_t id = gguf_find_key(file, (arch + ".attention.recurrent_layers").c_str());
        if (id >= 0 && gguf_get_kv_type(file, id) == GGUF_TYPE_ARRAY && gguf_get_arr_type(file, id) == GGUF_TYPE_BOOL) {
            return layer < gguf_get_arr_n(file, id) && ((const int8_t *) gguf_get_arr_data(file, id))[layer] != 0;
        }
        const uint32_t interval = has(".full_attention_interval") ? value(".full_attention_interval") : 4;
        return layer < value(".block_count") - value(".nextn_predict_layers") && (layer + 1) % std::max(interval, 1u) != 0;
    }

    const gguf_context * file;
    const std::string &  arch;
    const char *         path;
    const char *         what;
};

} // namespace

uint32_t read_u32(const gguf_context * file, const std::string & key) {
    const int64_t id = gguf_find_key(file, key.c_str());
    return id >= 0 && gguf_get_kv_type(file, id) == GGUF_TYPE_UINT32 ? gguf_get_val_u32(file, id) : 0;
}

void require_sane_model(const gguf_context * file, const std::string & arch, const char * path, const char * what) {
    const checker check(file, arch, path, what);
    if (!check.has(".block_count")) {
        return; // no language model: the loader says so itself
    }
    check.counts();
    check.norm_epsilon();
    check.rope_scaling();
    if (arch == "qwen4exp") {
        check.limits();
        check.rope();
        check.compress_ratios();
        check.delta_net();
        check.ngrams();
        check.vocabulary();
    }
    require_sane_tensors(file, arch, path, what);
}

void require_sane_tensors(const gguf_context * file, const std::string & arch, const char * path, const char * what) {
    if (arch == "qwen4exp") {
        checker(file, arch, path, what).tensor_types();
    }
}

} // namespace lucebox
