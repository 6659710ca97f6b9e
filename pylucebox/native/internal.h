// Shared by the files of the library; nothing in here is part of the C API.
#pragma once

#include "draft_rows.h"
#include "gumbel.h"
#include "lucebox.h"
#include "model_files.h"

#include "chat.h"
#include "common.h"
#include "llama-cpp.h"
#include "sampling.h"

#include <algorithm>
#ifdef __GLIBCXX__
#    include <cxxabi.h>
#endif
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace lucebox {

// What a C function reports instead of letting an exception out.
class error : public std::runtime_error {
  public:
    error(lucebox_status status, const std::string & text) : std::runtime_error(text), status(status) {}

    const lucebox_status status;
};

[[noreturn]] void fail(lucebox_status status, const char * format, ...) __attribute__((format(printf, 2, 3)));

void set_last_error(const char * text) noexcept;

// Runs `body` and turns every exception into a status and the thread's error text.
template <typename F> lucebox_status guarded(F && body) {
    try {
        body();
        return LUCEBOX_OK;
    } catch (const error & e) {
        set_last_error(e.what());
        return e.status;
#ifdef __GLIBCXX__
    } catch (const abi::__forced_unwind &) {
        throw; // the thread is being ended; whoever swallows that ends the process
#endif
    } catch (const std::bad_alloc &) {
        set_last_error("out of memory");
        return LUCEBOX_ERR_MEMORY;
    } catch (const std::invalid_argument & e) {
        set_last_error(e.what());
        return LUCEBOX_ERR_ARGUMENT;
    } catch (const std::exception & e) {
        set_last_error(e.what());
        return LUCEBOX_ERR_INTERNAL;
    } catch (...) {
        set_last_error("an exception of unknown type");
        return LUCEBOX_ERR_INTERNAL;
    }
}

// Smallest context, in tokens.
constexpr uint32_t MIN_N_CTX = 16;

// What an argument points to. Throws when it is NULL.
template <typename T> T & needed(T * argument, const char * name) {
    if (argument == nullptr) {
        fail(LUCEBOX_ERR_ARGUMENT, "%s is NULL", name);
    }
    return *argument;
}

// Whether a struct's size can be that of one, of this header or an older one: whole fields, of which the first is there.
template <typename T> bool is_size_of(size_t struct_size) {
    return struct_size >= sizeof(size_t) && struct_size % alignof(T) == 0;
}

// Copy of a caller's struct. A caller compiled against an older header passes a shorter one; the fields it does
// not know keep their defaults.
template <typename T> T take_params(const T * params, void (*init)(T *)) {
    T out;
    init(&out);
    if (params == nullptr || !is_size_of<T>(params->struct_size)) {
        fail(LUCEBOX_ERR_ARGUMENT, "params is NULL or its struct_size is not that of a struct");
    }
    std::memcpy(&out, params, std::min(params->struct_size, sizeof(T)));
    out.struct_size = sizeof(T);
    return out;
}

// The counterpart for results.
template <typename T> void require_result(const T * dst) {
    if (dst == nullptr || !is_size_of<T>(dst->struct_size)) {
        fail(LUCEBOX_ERR_ARGUMENT, "the result struct is NULL or its struct_size is not that of a struct");
    }
}

template <typename T> void give_result(T * dst, T src) {
    require_result(dst);
    src.struct_size = dst->struct_size;
    std::memcpy(dst, &src, std::min(src.struct_size, sizeof(T)));
}

char * copy_string(const std::string & text);

// Whether a sampler draws with noise that drafts can share; `seed`, which may be NULL, receives its seed.
bool draws_with_gumbel(const common_sampler * chain, uint32_t * seed);

// What drafts do to their logits to foresee the draws of `chain`: its filters that look at logits alone.
draft_pick pick_of(const common_params_sampling & params, const common_sampler * chain);

// While one of these lives, the error lines that the calling thread logs are kept.
class log_capture {
  public:
    log_capture();
    ~log_capture();

    log_capture(const log_capture &)             = delete;
    log_capture & operator=(const log_capture &) = delete;

    // Keeps a line in the innermost one of this thread.
    static void add(const std::string & line);

    // the lines, joined by "; ", or `fallback` when there is none
    std::string text_or(const std::string & fallback) const;

  private:
    std::string   lines;
    std::string * outer;
};

// Whether upstream's account of a failure means that memory ran out.
bool tells_of_memory(const std::string & cause);

struct model_state {
    model_files                 files; // those that are mapped
    std::unique_ptr<draft_rows> draft; // null: drafts come from the whole head; used by the models
    llama_model_ptr trunk;
    llama_model_ptr sidecar; // null when the MTP block is in the trunk's file, or absent

    int32_t  mtp_source           = LUCEBOX_MTP_NONE;
    int32_t  hidden_norm          = LUCEBOX_HIDDEN_NORM_FULL;
    bool     mtp_borrows_embedding = false;
    bool     mtp_borrows_head      = false;

    common_chat_templates_ptr templates; // null when the file has none
    std::string               templates_error;

    const llama_vocab * vocab() const { return llama_model_get_vocab(trunk.get()); }
    int32_t             n_vocab() const { return llama_vocab_n_tokens(vocab()); }
    llama_model *       mtp_model() const { return sidecar ? sidecar.get() : trunk.get(); }
};

// Floats of the state that the trunk hands to the MTP block: all its residual streams, or one where it has no more.
int32_t hidden_width(const llama_model * model);

// Model files name a ggml type as ggml does, for example "q8_0".
enum ggml_type type_from_name(const char * name);

} // namespace lucebox

// Handles share the state, so that a model may be closed before the sessions that use it.
struct lucebox_model {
    std::shared_ptr<lucebox::model_state> state;
};

struct lucebox_sampler {
    std::shared_ptr<lucebox::model_state> model;
    common_sampler_ptr                    chain;
    lucebox::draft_pick                   pick; // for drafts that are to foresee its draws
    common_params_sampling                params;
};
