// A model's tokenizer.
#include "internal.h"

namespace lucebox {

namespace {

// Copies a piece of text whose length is only known after a first try.
template <typename F> void write_text(F && produce, char * dst, size_t capacity, size_t * out_bytes) {
    needed(out_bytes, "out_bytes");
    std::string buffer(64, '\0');
    int32_t     n = produce(buffer.data(), (int32_t) buffer.size());
    if (n < 0) {
        buffer.resize((size_t) -n);
        n = produce(buffer.data(), (int32_t) buffer.size());
    }
    if (n < 0) {
        fail(LUCEBOX_ERR_INTERNAL, "the tokenizer gave no text");
    }
    *out_bytes = (size_t) n;
    if ((size_t) n > capacity || (dst == nullptr && n > 0)) {
        fail(LUCEBOX_ERR_ARGUMENT, "%d bytes are needed, %zu were given", n, capacity);
    }
    if (n > 0) {
        std::memcpy(dst, buffer.data(), (size_t) n);
    }
}

void require_token(const model_state & state, int32_t token) {
    if (token < 0 || token >= state.n_vocab()) {
        fail(LUCEBOX_ERR_ARGUMENT, "token id %d is outside the vocabulary, 0..%d", token, state.n_vocab() - 1);
    }
}

} // namespace

} // namespace lucebox

using namespace lucebox;

lucebox_status lucebox_tokenize(const lucebox_model * model, const char * text, size_t text_bytes, bool add_special,
                                bool parse_special, int32_t * tokens, size_t capacity, size_t * out_n) {
    return guarded([&] {
        if (text_bytes > (size_t) INT32_MAX) {
            fail(LUCEBOX_ERR_ARGUMENT, "the text has %zu bytes; at most %d can be tokenised", text_bytes, INT32_MAX);
        }
        needed(out_n, "out_n");
        const llama_vocab * vocab = needed(model, "model").state->vocab();
        const std::string   copy  = text_bytes > 0 ? std::string(&needed(text, "text"), text_bytes) : std::string();
        const auto          ids   = common_tokenize(vocab, copy, add_special, parse_special);
        *out_n                    = ids.size();
        if (ids.size() > capacity || (tokens == nullptr && !ids.empty())) {
            fail(LUCEBOX_ERR_ARGUMENT, "the text has %zu tokens, room was given for %zu", ids.size(), capacity);
        }
        std::copy(ids.begin(), ids.end(), tokens);
    });
}

lucebox_status lucebox_token_bytes(const lucebox_model * model, int32_t token, bool special, char * bytes,
                                   size_t capacity, size_t * out_bytes) {
    return guarded([&] {
        require_token(*needed(model, "model").state, token);
        write_text(
            [&](char * dst, int32_t n) { return llama_token_to_piece(model->state->vocab(), token, dst, n, 0, special); },
            bytes, capacity, out_bytes);
    });
}

lucebox_status lucebox_detokenize(const lucebox_model * model, const int32_t * tokens, size_t n_tokens, bool special,
                                  char * text, size_t capacity, size_t * out_bytes) {
    return guarded([&] {
        const model_state & state = *needed(model, "model").state;
        if (n_tokens > (size_t) INT32_MAX) {
            fail(LUCEBOX_ERR_ARGUMENT, "%zu tokens were given; at most %d can be turned into text", n_tokens,
                 INT32_MAX);
        }
        if (n_tokens > 0) {
            needed(tokens, "tokens");
        }
        for (size_t i = 0; i < n_tokens; ++i) {
            require_token(state, tokens[i]);
        }
        write_text(
            [&](char * dst, int32_t n) {
                return llama_detokenize(state.vocab(), tokens, (int32_t) n_tokens, dst, n, false, special);
            },
            text, capacity, out_bytes);
    });
}

bool lucebox_token_is_eog(const lucebox_model * model, int32_t token) {
    return model != nullptr && token >= 0 && token < model->state->n_vocab() && llama_vocab_is_eog(model->state->vocab(), token);
}
