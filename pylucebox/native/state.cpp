// Saving and restoring a sequence between cycles.
#include "session.h"

#ifdef LUCEBOX_GUMBEL
#    include "llama-ext.h"
#endif

namespace lucebox {

namespace {

const uint32_t STATE_MAGIC   = 0x5342584c; // "LXBS"
const uint32_t STATE_VERSION = 3;

struct state_header {
    uint32_t magic;
    uint32_t version;
    int32_t  n_past;
    int32_t  last;
    uint32_t use_mtp;
    uint32_t n_waiting;   // pairs that wait for the MTP block
    uint32_t n_embd_out;  // floats of a hidden state
    uint32_t n_vocab;
    uint64_t trunk_bytes;
    uint64_t mtp_bytes;
    uint64_t checksum; // of everything else
};

// Bytes that come back changed must not reach readers that trust them. Not against forgery.
uint64_t checksum_of(uint64_t sum, const uint8_t * bytes, size_t n) {
    for (; n > 0;) {
        uint64_t     word = 0;
        const size_t m    = std::min(n, sizeof(word));
        std::memcpy(&word, bytes, m);
        sum = (sum ^ word) * 0x9fb21c651e98df25u; // odd, so that no bit is lost
        sum ^= sum >> 29;
        bytes += m;
        n -= m;
    }
    return sum;
}

uint64_t checksum_of(state_header h, const void * body, size_t n_body) {
    h.checksum = 0x9e3779b97f4a7c15u;
    return checksum_of(checksum_of(h.checksum, (const uint8_t *) &h, sizeof(h)), (const uint8_t *) body, n_body);
}

class writer {
  public:
    writer(void * bytes, size_t capacity) : out((uint8_t *) bytes), capacity(capacity) {}

    void put(const void * data, size_t n) {
        std::memcpy(claim(n), data, n);
    }

    uint8_t * claim(size_t n) {
        if (n > capacity - used) {
            fail(LUCEBOX_ERR_ARGUMENT, "the buffer of %zu bytes is too small for the state", capacity);
        }
        used += n;
        return out + used - n;
    }

  private:
    uint8_t * out;
    size_t    capacity;
    size_t    used = 0;
};

class reader {
  public:
    reader(const void * bytes, size_t n) : in((const uint8_t *) bytes), left(n) {}

    const uint8_t * take(size_t n) {
        if (n > left) {
            fail(LUCEBOX_ERR_ARGUMENT, "the saved state is cut short: %zu more bytes were expected, %zu are left", n,
                 left);
        }
        const uint8_t * at = in;
        in += n;
        left -= n;
        return at;
    }

    size_t rest() const { return left; }

  private:
    const uint8_t * in;
    size_t          left;
};

state_header make_header(lucebox_session & s, int32_t seq) {
    const seq_state & state = s.ready(seq);
    state_header      h     = {};
    h.magic                 = STATE_MAGIC;
    h.version               = STATE_VERSION;
    h.n_past                = state.n_past;
    h.last                  = state.last;
    h.use_mtp               = state.use_mtp;
    h.n_embd_out            = (uint32_t) hidden_width(s.model->trunk.get());
    h.n_vocab               = (uint32_t) s.model->n_vocab();
    h.trunk_bytes           = llama_state_seq_get_size(s.ctx.get(), seq);
    if (state.use_mtp) {
        s.drafter->drop(seq); // drafts are no part of the state
        h.n_waiting = (uint32_t) s.drafter->waiting(seq).tokens.size();
        h.mtp_bytes = llama_state_seq_get_size(s.drafter->context(), seq);
    }
    return h;
}

size_t waiting_bytes(const state_header & h) {
    return h.n_waiting * (sizeof(llama_token) + sizeof(llama_pos) + (size_t) h.n_embd_out * sizeof(float));
}

size_t total_bytes(const state_header & h) {
    return sizeof(h) + waiting_bytes(h) + h.trunk_bytes + h.mtp_bytes;
}

void get_state(llama_context * ctx, writer & out, size_t n, int32_t seq) {
    if (llama_state_seq_get_data(ctx, out.claim(n), n, seq) != n) {
        fail(LUCEBOX_ERR_INTERNAL, "the state of sequence %d could not be written", seq);
    }
}

void set_state(llama_context * ctx, reader & in, size_t n, int32_t seq) {
    if (llama_state_seq_set_data(ctx, in.take(n), n, seq) != n) {
        fail(LUCEBOX_ERR_ARGUMENT, "the saved state does not fit this session: other model, cache type or context");
    }
}

void check_header(const lucebox_session & s, const state_header & h, size_t n_rest) {
    if (h.magic != STATE_MAGIC || h.version != STATE_VERSION) {
        fail(LUCEBOX_ERR_ARGUMENT, "the bytes are not a saved state of this version");
    }
    const bool shape = h.n_embd_out == (uint32_t) hidden_width(s.model->trunk.get()) &&
                       h.n_vocab == (uint32_t) s.model->n_vocab() && h.last >= 0 && (uint32_t) h.last < h.n_vocab &&
                       h.n_past >= 0;
    // sizes first: they come from outside and are about to be added up
    if (!shape || waiting_bytes(h) > n_rest || h.trunk_bytes > n_rest || h.mtp_bytes > n_rest ||
        (h.n_waiting > 0 && !h.use_mtp) || total_bytes(h) - sizeof(h) != n_rest) {
        fail(LUCEBOX_ERR_ARGUMENT, "the saved state is damaged or belongs to another model");
    }
    if (h.use_mtp && !s.drafter) {
        fail(LUCEBOX_ERR_ARGUMENT, "the state was saved with MTP; this session has none");
    }
    if ((uint32_t) h.n_past > s.params.n_ctx) {
        fail(LUCEBOX_ERR_CONTEXT_FULL, "the saved state holds %d tokens, n_ctx is %u", h.n_past, s.params.n_ctx);
    }
}

void load_waiting(lucebox_session & s, int32_t seq, const state_header & h, reader & in) {
    const size_t width = h.n_embd_out;
    std::vector<llama_token> ids(h.n_waiting);
    std::vector<llama_pos>   positions(h.n_waiting);
    std::memcpy(ids.data(), in.take(h.n_waiting * sizeof(llama_token)), h.n_waiting * sizeof(llama_token));
    std::memcpy(positions.data(), in.take(h.n_waiting * sizeof(llama_pos)), h.n_waiting * sizeof(llama_pos));
    std::vector<float> hidden(width);
    for (uint32_t i = 0; i < h.n_waiting; ++i) {
        std::memcpy(hidden.data(), in.take(width * sizeof(float)), width * sizeof(float));
        s.drafter->feed(seq, ids[i], positions[i], hidden.data());
    }
}

// A session whose trunk's graph writes for the block has one pair waiting, and its state at hand for the next pass. One
// without may have saved more.
void resume_writing(lucebox_session & s, int32_t seq, const state_header & h) {
    s.writer->enable(seq, h.use_mtp != 0);
    if (h.use_mtp == 0) {
        return;
    }
    const auto & waiting = s.drafter->waiting(seq);
    if (waiting.positions.empty() || waiting.positions.back() != h.n_past - 1) {
        fail(LUCEBOX_ERR_ARGUMENT, "the saved state is damaged: it lacks the pair of its last token");
    }
    draft_counts ignored;
    s.drafter->catch_up(seq, ignored);
    s.writer->set_hidden(seq, h.n_past - 1, waiting.hidden.data());
}

// A new sampler counts from 0, although the sequence does not begin here.
void go_on_drawing(seq_state & state) {
#ifdef LUCEBOX_GUMBEL
    llama_sampler_gumbel_set_position(common_sampler_get(state.sampler.get()), (uint32_t) state.n_past + 1);
#else
    (void) state;
#endif
}

} // namespace

} // namespace lucebox

using namespace lucebox;

lucebox_status lucebox_session_state_save(lucebox_session * session, int32_t seq, void * bytes, size_t capacity,
                                          size_t * out_bytes) {
    return guarded([&] {
        state_header h = make_header(needed(session, "session"), seq);
        needed(out_bytes, "out_bytes") = total_bytes(h);
        if (bytes == nullptr) {
            return;
        }
        writer out(bytes, capacity);
        out.put(&h, sizeof(h));
        if (h.n_waiting > 0) {
            const auto & waiting = session->drafter->waiting(seq);
            out.put(waiting.tokens.data(), h.n_waiting * sizeof(llama_token));
            out.put(waiting.positions.data(), h.n_waiting * sizeof(llama_pos));
            out.put(waiting.hidden.data(), waiting.hidden.size() * sizeof(float));
        }
        get_state(session->ctx.get(), out, h.trunk_bytes, seq);
        if (h.mtp_bytes > 0) {
            get_state(session->drafter->context(), out, h.mtp_bytes, seq);
        }
        h.checksum = checksum_of(h, (const uint8_t *) bytes + sizeof(h), total_bytes(h) - sizeof(h));
        std::memcpy(bytes, &h, sizeof(h));
    });
}

lucebox_status lucebox_session_state_load(lucebox_session * session, int32_t seq, const void * bytes, size_t n_bytes,
                                          lucebox_sampler * sampler) {
    std::unique_ptr<lucebox_sampler> owned(sampler);
    return guarded([&] {
        if (!owned || owned->model != needed(session, "session").model) {
            fail(LUCEBOX_ERR_ARGUMENT, "the sampler is NULL or was made for another model");
        }
        needed((const uint8_t *) bytes, "bytes");
        reader       in(bytes, n_bytes);
        state_header h;
        std::memcpy(&h, in.take(sizeof(h)), sizeof(h));
        check_header(*session, h, in.rest());
        if (checksum_of(h, (const uint8_t *) bytes + sizeof(h), in.rest()) != h.checksum) {
            fail(LUCEBOX_ERR_ARGUMENT, "the saved state is damaged: its checksum does not match");
        }
        session->clear(seq);
        seq_state & state = session->at(seq);
        try {
            load_waiting(*session, seq, h, in);
            set_state(session->ctx.get(), in, h.trunk_bytes, seq);
            if (h.mtp_bytes > 0) {
                set_state(session->drafter->context(), in, h.mtp_bytes, seq);
            }
            if (session->writer) {
                resume_writing(*session, seq, h);
            }
        } catch (...) {
            session->clear(seq);
            throw;
        }
        state.n_past  = h.n_past;
        state.last    = h.last;
        state.use_mtp = h.use_mtp != 0;
        state.sampler = std::move(owned->chain);
        session->couple(seq, owned->pick);
        go_on_drawing(state);
        state.phase   = seq_phase::ready;
    });
}
