// See mtp_pairs.h. Compiled into libllama with mtp_writer.cpp.
#include "mtp_pairs.h"

#include <memory>

namespace lucebox {

llama_ubatch ubatch_of_pairs(const pairs_of_ubatch & pairs, const first_tokens & firsts, const llama_ubatch & ubatch) {
    const uint32_t n      = pairs.n_pairs();
    const uint32_t n_each = pairs.n_pairs_each();
    auto           data   = std::make_shared<llama_ubatch::data_t>();
    data->token.resize(n);
    data->pos.resize((size_t) n * ubatch.n_pos);
    data->n_seq_id.assign(n, 1);
    data->seq_id.resize(n);
    data->seq_id_data.resize(n);
    data->seq_idx.assign(LLAMA_MAX_SEQ, -1);
    data->output.assign(n, 0);
    for (uint32_t m = 0; m < firsts.size(); ++m) {
        const auto [seq, first] = firsts[m];
        data->seq_idx[(size_t) seq] = (int32_t) data->seq_id_unq.size();
        data->seq_id_unq.push_back(seq);
        for (uint32_t i = 0; i < n_each; ++i) {
            const uint32_t to   = m * n_each + i;
            const uint32_t skip = pairs.n_tokens - n_each;
            data->token[to]       = ubatch.token[(uint32_t) pairs.members[m] * pairs.n_tokens + skip + i];
            data->seq_id_data[to] = seq;
            data->seq_id[to]      = &data->seq_id_data[to];
            for (uint32_t j = 0; j < ubatch.n_pos; ++j) {
                // the last section is 0 for text, as llama_batch_allocr fills it in
                data->pos[(size_t) j * n + to] = j < 3 ? first + (llama_pos) (skip + i) - 1 : 0;
            }
        }
    }
    llama_ubatch u   = {};
    u.b_equal_seqs   = true;
    u.n_tokens       = n;
    u.n_seq_tokens   = n_each;
    u.n_seqs         = (uint32_t) firsts.size();
    u.n_seqs_unq     = u.n_seqs;
    u.n_pos          = ubatch.n_pos;
    u.token          = data->token.data();
    u.pos            = data->pos.data();
    u.n_seq_id       = data->n_seq_id.data();
    u.seq_id         = data->seq_id.data();
    u.seq_id_unq     = data->seq_id_unq.data();
    u.seq_idx        = data->seq_idx.data();
    u.output         = data->output.data();
    u.data           = std::move(data);
    return u;
}

} // namespace lucebox
