#include "model_checks.h"

#include "internal.h"

#include "llama-hparams.h"

#include <cmath>
#include <unordered_set>

namespace lucebox {

namespace {

class checker {
  public:
    checker(const gguf_context * file, const std::string & arch, const char * path, const char * what) :
        file(file), arch(arch), path(path), what(what) {}

    bool has(const char * key) const { return gguf_find_key(file, (arch + key).c_str()) >= 0; }

    uint32_t value(const char * key) const { return read_u32(file, arch + key); }

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
        range(".nextn_predict_layers", 0, value(".block_count"));
        range(".expert_count", 0, LLAMA_MAX_EXPERTS);
        const int64_t used = gguf_find_key(file, (arch + ".expert_used_count").c_str());
        if (used < 0 || gguf_get_kv_type(file, used) == GGUF_TYPE_UINT32) { // a list per layer is upstream's to check
            range(".expert_used_count", value(".expert_count") > 0 ? 1 : 0, value(".expert_count"));
        }
    }

    void norm_epsilon() const {
        const int64_t id = gguf_find_key(file, (arch + ".attention.layer_norm_rms_epsilon").c_str());
        if (id >= 0 && gguf_get_kv_type(file, id) == GGUF_TYPE_FLOAT32) {
            const float epsilon = gguf_get_val_f32(file, id);
            require(std::isfinite(epsilon) && epsilon >= 0.0f, "the epsilon of its norms is not a number from 0 on");
        }
    }

    void rope() const {
        const uint32_t n_rot = value(".rope.dimension_count");
        if (!has(".rope.dimension_count") || !has(".attention.key_length")) {
            return;
        }
        require(n_rot % 2 == 0, arch + ".rope.dimension_count is odd");
        range(".rope.dimension_count", 2, value(".attention.key_length"));
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

    void delta_net() const {
        const uint64_t wanted = (uint64_t) value(".ssm.state_size") * value(".ssm.time_step_rank");
        require(value(".ssm.inner_size") == wanted, arch + ".ssm.inner_size is not state size times heads");
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
    if (arch == "qwen4exp") {
        check.rope();
        check.delta_net();
        check.ngrams();
        check.vocabulary();
        check.tensor_types();
    }
}

} // namespace lucebox
