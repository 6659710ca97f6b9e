#include "draft_rows.h"

#include "llama-ext.h"
#include "llama-model.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <new>
#include <numeric>
#include <stdexcept>

namespace lucebox {

namespace {

ggml_backend_buffer_type_t type_of(const ggml_tensor * weight) {
    return ggml_backend_buffer_get_type(weight->buffer);
}

bool is_cpu(ggml_backend_dev_t device) {
    return device == nullptr || ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

ggml_backend_dev_t device_of(const ggml_tensor * weight) {
    const ggml_backend_dev_t device = ggml_backend_buft_get_device(type_of(weight));
    return device != nullptr ? device : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

// Whether a device multiplies with `n_rows` rows of a type in a kind of buffer.
bool can_multiply(ggml_backend_dev_t device, ggml_backend_buffer_type_t buft, enum ggml_type type, int64_t n_per_row,
                  int64_t n_rows) {
    ggml_context_ptr        ctx(ggml_init({ 3 * ggml_tensor_overhead(), nullptr, /*.no_alloc =*/true }));
    ggml_backend_buffer_ptr none(ggml_backend_buft_alloc_buffer(buft, 0));
    ggml_tensor *           weight = ggml_new_tensor_2d(ctx.get(), type, n_per_row, n_rows);
    ggml_tensor *           input  = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_per_row, 1);
    weight->buffer                 = none.get();
    return ggml_backend_dev_supports_op(device, ggml_mul_mat(ctx.get(), weight, input));
}

// Whether a device looks rows of a type up.
bool can_look_up(ggml_backend_dev_t device, enum ggml_type type, int64_t n_per_row, int64_t n_rows) {
    ggml_context_ptr ctx(ggml_init({ 3 * ggml_tensor_overhead(), nullptr, /*.no_alloc =*/true }));
    ggml_tensor *    table = ggml_new_tensor_2d(ctx.get(), type, n_per_row, n_rows);
    ggml_tensor *    ids   = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, 1);
    return ggml_backend_dev_supports_op(device, ggml_get_rows(ctx.get(), table, ids));
}

ggml_backend_dev_t device_of_block(const llama_model * mtp) {
    return device_of(mtp->layers[mtp->hparams.n_layer()].nextn.eh_proj);
}

// Reads the rows `ids` of a table, runs of neighbours at once.
void read_rows(const table_place & place, const std::vector<int32_t> & ids, size_t row_bytes, uint8_t * to) {
    std::ifstream file(place.path, std::ios::binary);
    for (size_t begin = 0; begin < ids.size() && file;) {
        size_t end = begin + 1;
        while (end < ids.size() && ids[end] == ids[end - 1] + 1) {
            ++end;
        }
        file.seekg((std::streamoff) (place.offset + (size_t) ids[begin] * row_bytes));
        file.read((char *) to, (std::streamsize) ((end - begin) * row_bytes));
        to += (end - begin) * row_bytes;
        begin = end;
    }
    if (!file) {
        throw std::runtime_error("cannot read rows of a table in '" + place.path + "': " + std::strerror(errno));
    }
}

std::vector<int32_t> ids_of_head(const llama_model & mtp) {
    const ggml_tensor * d2t = mtp.d2t;
    if (d2t == nullptr) {
        std::vector<int32_t> all(mtp.vocab.n_tokens());
        std::iota(all.begin(), all.end(), 0);
        return all;
    }
    std::vector<int64_t> wide((size_t) ggml_nelements(d2t));
    ggml_backend_tensor_get(d2t, wide.data(), 0, ggml_nbytes(d2t));
    return { wide.begin(), wide.end() };
}

} // namespace

draft_rows::copy draft_rows::make(enum ggml_type type, int64_t n_per_row, ggml_backend_buffer_type_t buft) const {
    copy made;
    made.ctx.reset(ggml_init({ ggml_tensor_overhead(), nullptr, /*.no_alloc =*/true }));
    made.tensor = ggml_new_tensor_2d(made.ctx.get(), type, n_per_row, (int64_t) ids.size());
    made.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(made.ctx.get(), buft));
    if (!made.buffer) {
        throw std::bad_alloc();
    }
    ggml_backend_buffer_set_usage(made.buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    return made;
}

draft_rows::copy draft_rows::gather(const table_place & place, ggml_backend_buffer_type_t buft) const {
    const size_t n_row = ggml_row_size(place.type, n_embd);
    if (place.n_bytes != n_row * (size_t) n_vocab) {
        throw std::runtime_error("the table in '" + place.path + "' has not a row for each token");
    }
    copy made = make(place.type, n_embd, buft);
    if (ggml_backend_buft_is_host(buft)) {
        read_rows(place, ids, n_row, (uint8_t *) made.tensor->data);
    } else {
        std::vector<uint8_t> bytes(ggml_nbytes(made.tensor));
        read_rows(place, ids, n_row, bytes.data());
        ggml_backend_tensor_set(made.tensor, bytes.data(), 0, bytes.size());
    }
    return made;
}

draft_rows::copy draft_rows::list_of_ids(ggml_backend_buffer_type_t buft) const {
    copy made = make(GGML_TYPE_I32, 1, buft);
    ggml_backend_tensor_set(made.tensor, ids.data(), 0, ggml_nbytes(made.tensor));
    return made;
}

bool draft_rows::embeddings_are_elsewhere(const llama_model * mtp, const llama_model * target) {
    const ggml_tensor *      embd   = mtp->tok_embd ? mtp->tok_embd : target->tok_embd;
    const ggml_backend_dev_t device = device_of_block(mtp);
    return device_of(embd) != device && can_look_up(device, embd->type, embd->ne[0], embd->ne[1]);
}

draft_rows::draft_rows(llama_model * mtp, const llama_model * target, const table_place & head, const table_place & embd,
                       const std::vector<int32_t> & wanted) :
    n_embd(mtp->hparams.n_embd),
    n_vocab(mtp->vocab.n_tokens()),
    ids(wanted.empty() ? ids_of_head(*mtp) : wanted) {
    const ggml_backend_dev_t         device = device_of_block(mtp);
    const ggml_backend_buffer_type_t home   = ggml_backend_dev_buffer_type(device);
    const bool                       is_all = wanted.empty() && mtp->d2t == nullptr; // the head that is there, as it is

    ggml_tensor * rows[2] = {};
    if (!wanted.empty()) {
        // the CPU's own layout for the whole head is the best one for some of its rows too
        const ggml_backend_buffer_type_t other = type_of(mtp->output ? mtp->output : target->output);
        const bool special = is_cpu(device) && ggml_backend_buft_get_device(other) == device && !ggml_backend_buft_is_host(other);
        const bool as_head = special && can_multiply(device, other, head.type, n_embd, (int64_t) ids.size());
        copies.push_back(gather(head, as_head ? other : home));
        rows[0] = copies.back().tensor;
    }
    if (embeddings_are_elsewhere(mtp, target)) {
        copies.push_back(gather(embd, home));
        rows[1] = copies.back().tensor;
    }
    ggml_tensor * tokens = nullptr;
    if (!is_all) {
        copies.push_back(list_of_ids(home));
        tokens = copies.back().tensor;
    }
    llama_model_set_draft_rows(mtp, rows[0], rows[1], tokens);
}

} // namespace lucebox
