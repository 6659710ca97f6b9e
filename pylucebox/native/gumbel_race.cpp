#include "gumbel_race.h"

#include <algorithm>
#include <cstring>

namespace lucebox {

namespace {

const int32_t LANES    = PHILOX_LANES; // loops over so many become vector instructions
const int32_t SHORT    = 32;           // tokens below which it does not matter whether they follow each other

// Groups of four tokens, whose words are made at once. A run may begin inside of one.
const int32_t N_GROUPS = token_block::SIZE / 4 + LANES;

const philox_lanes make_words = philox_of_this_cpu();

// The highest noise there is, that of the word of ones, is 22.87.
const double NO_SUCH_NOISE = 22.9;

// Sums are compared with that much room where they, or what they are compared with, are not those of the rule.
double room(double sum) {
    return 1e-4 + 1e-6 * std::abs(sum);
}

// Noise that a token with that logit must have to reach the bar, or somewhat less.
double needed_noise(double bar, float logit) {
    return (bar - logit) - room(bar);
}

// Words below this have less noise than that: noise is at most -ln(1 - u), u the word's place in (0, 1).
uint32_t word_from(double noise) {
    const double rest = std::exp(-noise) * (1.0 + 1e-9);
    return rest < 1.0 ? (uint32_t) std::max(0.0, 0x1p32 * (1.0 - rest) - 2.0) : 0;
}

// Somewhat more than the noise of a word, but for rounding. It takes no logarithm: the bits of a float are its logarithm,
// roughly, and never more than that.
float noise_at_most(uint32_t word) {
    const float rest = (float) (int32_t) (~word >> 1); // 2^31 (1 - u)
    int32_t     bits;
    std::memcpy(&bits, &rest, sizeof(bits));
    return 0.693147181f * ((float) (127 + 31) - (float) bits * 0x1p-23f);
}

// Words as they compare: SSE2 compares signed numbers only.
int32_t ordered(uint32_t word) {
    return (int32_t) (word ^ 0x80000000u);
}

struct block_words {
    uint32_t of[4][N_GROUPS]; // [token % 4][group]
};

// Sets those of `hits` whose group has a word from `lowest` on; says whether there are any.
bool find_hits(const block_words & words, int32_t n_groups, uint32_t lowest, int32_t (&hits)[N_GROUPS]) {
    const int32_t from = ordered(lowest);
    int32_t       any  = 0;
    for (int32_t i = 0; i < n_groups; ++i) {
        hits[i] = (ordered(words.of[0][i]) >= from) | (ordered(words.of[1][i]) >= from) |
                  (ordered(words.of[2][i]) >= from) | (ordered(words.of[3][i]) >= from);
        any |= hits[i];
    }
    return any != 0;
}

// Of a multiple of LANES.
float highest_of(const float * values, int32_t n) {
    float highest[LANES];
    std::copy_n(values, LANES, highest);
    for (int32_t i = LANES; i < n; i += LANES) {
        for (int32_t lane = 0; lane < LANES; ++lane) {
            highest[lane] = values[i + lane] > highest[lane] ? values[i + lane] : highest[lane];
        }
    }
    for (int32_t lane = 1; lane < LANES; ++lane) {
        highest[0] = highest[lane] > highest[0] ? highest[lane] : highest[0];
    }
    return highest[0];
}

bool is_run(const token_block & block) {
    int32_t apart = 0;
    for (int32_t i = 0; i < block.n; ++i) {
        apart |= block.tokens[i] ^ (block.tokens[0] + i);
    }
    return apart == 0;
}

} // namespace

float token_block::highest() const {
    return n == 0 ? -INFINITY : highest_of(logits, n_padded());
}

void gumbel_race::settle(const token_block & block, int32_t i, uint32_t word, int64_t first_entry) {
    const double  score = (double) block.logits[i] + gumbel_of(word);
    const int32_t token = block.tokens[i];
    if (score > first || (score == first && winner >= 0 && token < winning_token)) {
        second        = first;
        first         = score;
        winner        = first_entry + i;
        winning_token = token;
    } else if (score > second) {
        second = score;
    }
}

void gumbel_race::enter(const token_block & block, int64_t first_entry) {
    const float  highest = block.highest();
    const double need    = needed_noise(bar(), highest);
    if (highest == -INFINITY || need > NO_SUCH_NOISE) {
        return;
    }
    if (block.n >= SHORT && is_run(block)) {
        enter_run(block, word_from(need), first_entry);
    } else {
        enter_apart(block, first_entry);
    }
}

void gumbel_race::enter_run(const token_block & block, uint32_t lowest, int64_t first_entry) {
    const int32_t skipped  = block.tokens[0] % 4; // tokens of the first group that are not in the run
    const int32_t n_groups = (skipped + block.n + 3) / 4;
    block_words   words;
    int32_t       hits[N_GROUPS];
    for (int32_t first = 0; first < n_groups; first += LANES) {
        uint32_t groups[LANES];
        for (int32_t i = 0; i < LANES; ++i) {
            groups[i] = (uint32_t) (block.tokens[0] / 4 + first + i);
        }
        make_words(at, groups, words.of[0] + first, N_GROUPS);
    }
    if (!find_hits(words, n_groups, lowest, hits)) {
        return;
    }
    for (int32_t group = 0; group < n_groups; ++group) {
        for (int32_t lane = 0; hits[group] && lane < 4; ++lane) {
            const int32_t  i    = 4 * group + lane - skipped;
            const uint32_t word = words.of[lane][group];
            if (i >= 0 && i < block.n && block.logits[i] > -INFINITY &&
                !(noise_at_most(word) < needed_noise(bar(), block.logits[i]))) {
                settle(block, i, word, first_entry);
            }
        }
    }
}

void gumbel_race::enter_apart(const token_block & block, int64_t first_entry) {
    uint32_t      words[token_block::SIZE];
    float         at_most[token_block::SIZE];
    const int32_t n = block.n_padded();
    for (int32_t begin = 0; begin < n; begin += LANES) {
        const int32_t * tokens = block.tokens + begin;
        uint32_t        groups[LANES];
        uint32_t        made[4][LANES];
        for (int32_t i = 0; i < LANES; ++i) {
            groups[i] = (uint32_t) tokens[i] / 4;
        }
        make_words(at, groups, made[0], LANES);
        for (int32_t i = 0; i < LANES; ++i) {
            const uint32_t low  = tokens[i] & 1 ? made[1][i] : made[0][i];
            const uint32_t high = tokens[i] & 1 ? made[3][i] : made[2][i];
            words[begin + i]    = tokens[i] & 2 ? high : low;
        }
    }
    for (int32_t i = 0; i < n; ++i) {
        at_most[i] = block.logits[i] + noise_at_most(words[i]);
    }
    // the likely winner first: then hardly another one needs its exact sum
    const float   top    = highest_of(at_most, n);
    const int32_t likely = (int32_t) (std::find(at_most, at_most + block.n, top) - at_most);
    if (likely < block.n) {
        settle(block, likely, words[likely], first_entry);
    }
    double lowest = bar() - room(bar());
    for (int32_t i = 0; i < block.n; ++i) {
        if (!(at_most[i] < lowest) && i != likely && block.logits[i] > -INFINITY) {
            settle(block, i, words[i], first_entry);
            lowest = bar() - room(bar());
        }
    }
}

} // namespace lucebox
