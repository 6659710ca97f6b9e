// Part of libllama: the sampler that draws by the Gumbel-max rule, and drafts that share its noise.
//
// The token that maximises logit + noise is a draw from softmax(logits) if the noise is standard Gumbel. With noise that is
// a function of seed, position and token (gumbel_noise.h) the draw is one of the logits too: whoever has nearly the same
// logits and the same noise makes nearly always the same draw.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace lucebox {

// What a draft does to its logits before it adds the noise: those of the request's samplers that look at nothing but the
// logits and cost little, in the request's order.
struct draft_pick {
    enum kind : int32_t { TOP_K, TOP_P, MIN_P, TEMPERATURE };

    struct filter {
        kind  what;
        float value;
    };

    static constexpr int32_t MAX_FILTERS = 8;

    int32_t  coupled   = 0; // 0: the likeliest token, without noise
    uint32_t seed      = 0;
    int32_t  shift     = 0; // of the sampler's count of tokens against positions, which differ behind an image
    int32_t  min_keep  = 0;
    int32_t  n_filters = 0;
    filter   filters[MAX_FILTERS] = {};

    void add(kind what, float value) {
        if (n_filters < MAX_FILTERS) {
            filters[n_filters++] = { what, value };
        }
    }
};

// Where an input of a graph can hold it.
constexpr size_t DRAFT_PICK_WORDS = (sizeof(draft_pick) + 3) / 4;

struct picked {
    int32_t row;  // of the logits
    float   prob; // see lucebox_proposal
};

// The likeliest token and its probability: 1 / sum(exp(logit - max)). Of equals the last one, as the CPU's argmax has it.
inline picked pick_likeliest(const float * logits, int64_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; ++i) {
        best = logits[i] >= logits[best] ? i : best;
    }
    double sum = 0.0;
    for (int32_t i = 0; i < n; ++i) {
        sum += (double) std::exp(logits[i] - logits[best]);
    }
    return { best, (float) (1.0 / sum) };
}

// Picks a draft for `position` from `n` logits; ids[i] is the token of row i, or i itself where ids is null.
picked pick_draft(const draft_pick & how, int64_t position, const float * logits, const int32_t * ids, int64_t n);

} // namespace lucebox
