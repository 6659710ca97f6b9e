// Part of libllama: finds the highest sum of logit and noise (gumbel_noise.h), with as little noise as that takes.
//
// Nearly no token needs its noise. The highest sum so far says how much noise a token must have to come before it; where
// no noise is that high, none is made. Elsewhere random words are made side by side, and compared with the word from which
// on noise could be high enough. The few tokens that are left get their sum as the rule has it, in doubles, so the result
// is that of the plain rule to the last bit.
#pragma once

#include "philox_lanes.h"

#include <cmath>
#include <cstdint>

namespace lucebox {

// Tokens that enter a race together, in any order.
struct token_block {
    static constexpr int32_t SIZE = 128;

    int32_t n = 0;
    float   logits[SIZE];
    int32_t tokens[SIZE];

    // Loops over whole vectors find tokens behind the last one that cannot win. Call it when the block is filled.
    void pad() {
        for (int32_t i = n; i < n_padded(); ++i) {
            logits[i] = -INFINITY;
            tokens[i] = 0;
        }
    }

    int32_t n_padded() const { return (n + PHILOX_LANES - 1) / PHILOX_LANES * PHILOX_LANES; }

    // -INFINITY if none is a number.
    float highest() const;
};

class gumbel_race {
  public:
    // `places`: 1 if only the winner matters, 2 if its lead over the second does too.
    gumbel_race(uint32_t seed, uint32_t position, uint32_t draw, int places) : at{ seed, position, draw }, places(places) {}

    // The block's tokens are known by first_entry, first_entry + 1 and so on.
    void enter(const token_block & block, int64_t first_entry);

    // Tokens 0 to n - 1, which are known by these numbers, with their logits times `scale`.
    void enter_row(const float * logits, int64_t n, float scale);

    // Of equal sums the one of the lowest token wins. Tokens whose logit is no number or minus infinity never do.
    int64_t winner = -1; // -1: none entered that can win
    double  first  = -INFINITY;
    double  second = -INFINITY; // highest sum of another one, if there are two places

  private:
    template <typename in> friend struct race_in_lanes;

    double bar() const { return places > 1 ? second : first; }
    void   settle(float logit, int32_t token, uint32_t word, int64_t entry);

    const noise_place at;
    const int         places;
    int32_t           winning_token = 0;
};

} // namespace lucebox
