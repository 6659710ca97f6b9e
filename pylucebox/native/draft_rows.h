// Part of libllama: the rows of LM head and embedding that an MTP block drafts from.
//
// An LM head is most of what a draft reads. Rows of the tokens that are drafted at all are copied, as they are quantised,
// from the file: a back end may hold the table in another order, or keep it where it cannot be read back.
#pragma once

#include "ggml-cpp.h"

#include <cstdint>
#include <string>
#include <vector>

struct llama_model;

namespace lucebox {

// Where a table lies in a file; an empty path: nowhere.
struct table_place {
    std::string    path;
    size_t         offset  = 0;
    size_t         n_bytes = 0;
    enum ggml_type type    = GGML_TYPE_F32;
};

class draft_rows {
  public:
    // Makes the block in `mtp` draft the tokens `ids`, which ascend. Where they are empty these are the ones that its head
    // covers, as it is; only embeddings are then copied, to the block's device. `target` lends the tables that `mtp` lacks.
    // The object must outlive `mtp`. Throws std::bad_alloc, and std::runtime_error when a file cannot be read.
    draft_rows(llama_model * mtp, const llama_model * target, const table_place & head, const table_place & embd,
               const std::vector<int32_t> & ids);

    // Whether the block looks embeddings up on another device than its own, while its own could do that. A GPU's drafts
    // then wait for the host, which has the table, unless it is copied.
    static bool embeddings_are_elsewhere(const llama_model * mtp, const llama_model * target);

    size_t n_tokens() const { return ids.size(); }

    // of what was copied
    size_t n_bytes() const {
        size_t n = 0;
        for (const copy & made : copies) {
            n += ggml_backend_buffer_get_size(made.buffer.get());
        }
        return n;
    }

  private:
    struct copy {
        ggml_context_ptr        ctx;
        ggml_backend_buffer_ptr buffer;
        ggml_tensor *           tensor = nullptr;
    };

    copy make(enum ggml_type type, int64_t n_per_row, ggml_backend_buffer_type_t buft) const;
    copy gather(const table_place & place, ggml_backend_buffer_type_t buft) const;
    copy list_of_ids(ggml_backend_buffer_type_t buft) const;

    const int64_t        n_embd;
    const int64_t        n_vocab;
    std::vector<int32_t> ids;
    std::vector<copy>    copies;
};

} // namespace lucebox
