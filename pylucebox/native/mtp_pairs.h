// The pairs of a state and a token that a ubatch of the trunk completes for the MTP block.
#pragma once

#include "llama-batch.h"

#include <cstdint>
#include <utility>
#include <vector>

namespace lucebox {

// What the ubatch at hand means for the block.
struct pairs_of_ubatch {
    std::vector<int32_t> members;        // its sequences that are written for, as numbers within the ubatch
    uint32_t             n_seqs   = 0;   // all of its sequences
    uint32_t             n_tokens = 0;   // of each sequence
    bool                 starts   = false; // they begin with it, so their first token completes no pair
    bool                 deferred = false; // only the states are kept
    std::vector<int32_t> carried;        // slots of the states before the first token of each member, if there are any
    std::vector<int64_t> kept;           // slots that the last states of each member go to

    uint32_t n_pairs_each() const { return deferred ? 0 : n_tokens - (starts ? 1 : 0); }
    uint32_t n_pairs() const { return n_pairs_each() * (uint32_t) members.size(); }
};

// The sequence and the position of the first token of each member.
using first_tokens = std::vector<std::pair<llama_seq_id, llama_pos>>;

// The ubatch that the block's own context would be given: the tokens of the pairs, at the positions of their states.
llama_ubatch ubatch_of_pairs(const pairs_of_ubatch & pairs, const first_tokens & firsts, const llama_ubatch & ubatch);

} // namespace lucebox
