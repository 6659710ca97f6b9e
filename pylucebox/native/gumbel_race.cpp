#include "gumbel_race.h"

#include "lanes.h"

#include <algorithm>
#include <cstring>

namespace lucebox {

namespace {

const int32_t LANES = PHILOX_LANES; // loops over so many become vector instructions
const int32_t SIZE  = token_block::SIZE;

// So many have loops of their own, as most lists that filters leave are short.
const int32_t FEW  = LANES;
const int32_t SOME = 3 * LANES;

// The highest noise there is, that of the word of ones, is 22.87.
const double NO_SUCH_NOISE = 22.9;

// Sums are compared with that much room where they, or what they are compared with, are not those of the rule.
double room(double sum) {
    return 1e-4 + 1e-6 * std::abs(sum);
}

// Somewhat more than the noise of a word, but for rounding. It takes no logarithm: the bits of a float are its logarithm,
// roughly, and never more than that.
LUCEBOX_INLINE float noise_at_most(uint32_t word) {
    const float rest = (float) (int32_t) (~word >> 1); // 2^31 (1 - u)
    int32_t     bits;
    std::memcpy(&bits, &rest, sizeof(bits));
    return 0.693147181f * ((float) (127 + 31) - (float) bits * 0x1p-23f);
}

// Whether whole groups of tokens follow each other: their words need not be made one by one.
LUCEBOX_INLINE bool is_run(const token_block & block) {
    int32_t apart = 0;
    for (int32_t i = 0; i < block.n; ++i) {
        apart |= block.tokens[i] ^ (block.tokens[0] + i);
    }
    return apart == 0 && block.n == SIZE && block.tokens[0] % 4 == 0;
}

// The first place of a number that is there.
LUCEBOX_INLINE int32_t place_of(const float * values, float wanted) {
    int32_t begin = 0;
    for (int32_t any = 0;; begin += LANES) {
        for (int32_t i = 0; i < LANES; ++i) {
            any |= values[begin + i] == wanted;
        }
        if (any) {
            break;
        }
    }
    while (values[begin] != wanted) {
        ++begin;
    }
    return begin;
}

// What differs by the kind of vectors: words, and the highest of N numbers, N a multiple of LANES. What is no number does
// not count there.
struct in_any {
    static void make_words(const noise_place & at, const uint32_t * groups, uint32_t * words, int32_t stride) {
        philox_of_any_cpu(at, groups, words, stride);
    }

    template <int32_t N> static float highest(const float * values) {
        float of_lane[LANES];
        std::fill_n(of_lane, LANES, -INFINITY);
        for (int32_t i = 0; i < N; i += LANES) {
            for (int32_t lane = 0; lane < LANES; ++lane) {
                of_lane[lane] = values[i + lane] > of_lane[lane] ? values[i + lane] : of_lane[lane];
            }
        }
        return *std::max_element(of_lane, of_lane + LANES);
    }
};

#ifdef LUCEBOX_X86_FORMS
struct in_avx2 {
    static LUCEBOX_AVX2 void make_words(const noise_place & at, const uint32_t * groups, uint32_t * words, int32_t stride) {
        philox_avx2(at, groups, words, stride);
    }

    template <int32_t N> static LUCEBOX_AVX2 float highest(const float * values) {
        __m256 even = _mm256_set1_ps(-INFINITY); // two, as a maximum waits for the one before it
        __m256 odd  = even;
        for (int32_t i = 0; i < N; i += 16) {
            even = _mm256_max_ps(_mm256_loadu_ps(values + i), even); // the second operand stays if one is no number
            odd  = _mm256_max_ps(_mm256_loadu_ps(values + i + 8), odd);
        }
        even        = _mm256_max_ps(even, odd);
        __m128 four = _mm_max_ps(_mm256_castps256_ps128(even), _mm256_extractf128_ps(even, 1));
        four        = _mm_max_ps(four, _mm_movehl_ps(four, four));
        return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
    }
};

struct in_avx512 : in_avx2 {
    static LUCEBOX_AVX512 void make_words(const noise_place & at, const uint32_t * groups, uint32_t * words, int32_t stride) {
        philox_avx512(at, groups, words, stride);
    }
};
#endif

// Tokens with their words, in an order that suits vectors. Who only fills it up has a logit of minus infinity.
template <int32_t N> struct field {
    float    logits[N];
    uint32_t words[N];
};

// Tokens in the order of a block.
struct order_of_block {
    const token_block & block;
    int64_t             first_entry;

    int32_t token(int32_t i) const { return block.tokens[i]; }
    int64_t entry(int32_t i) const { return first_entry + i; }
};

// Tokens of a run by their remainder of 4, then by their group, as words are made.
struct order_of_groups {
    static constexpr int32_t N_GROUPS = SIZE / 4;

    int32_t first_token;
    int64_t first_entry;

    static int32_t offset(int32_t i) { return 4 * (i % N_GROUPS) + i / N_GROUPS; }
    int32_t        token(int32_t i) const { return first_token + offset(i); }
    int64_t        entry(int32_t i) const { return first_entry + offset(i); }
};

} // namespace

// A race with loops for one kind of vectors.
template <typename in> struct race_in_lanes {
    static LUCEBOX_INLINE void enter(gumbel_race & race, const token_block & block, int64_t first_entry) {
        if (is_run(block)) {
            enter_run(race, block.logits, 1.0f, block.tokens[0], first_entry);
        } else if (block.n <= FEW) {
            enter_apart<FEW>(race, block, first_entry);
        } else if (block.n <= SOME) {
            enter_apart<SOME>(race, block, first_entry);
        } else {
            enter_apart<SIZE>(race, block, first_entry);
        }
    }

    static LUCEBOX_INLINE void enter_row(gumbel_race & race, const float * logits, int64_t n, float scale) {
        // the part with the highest logit goes first: it leaves the others little to hope for
        const int64_t n_whole = n / SIZE * SIZE;
        int64_t       first   = 0;
        float         highest = -INFINITY;
        for (int64_t begin = 0; begin < n_whole; begin += SIZE) {
            const float of_part = in::template highest<SIZE>(logits + begin);
            first               = of_part > highest ? begin : first;
            highest             = of_part > highest ? of_part : highest;
        }
        for (int64_t i = -1; i * SIZE < n_whole; ++i) {
            const int64_t begin = i < 0 ? first : i * SIZE;
            if (begin < n_whole && (i < 0 || begin != first)) {
                enter_run(race, logits + begin, scale, (int32_t) begin, begin);
            }
        }
        token_block rest;
        rest.n = (int32_t) (n - n_whole);
        for (int32_t i = 0; i < rest.n; ++i) {
            rest.logits[i] = logits[n_whole + i] * scale;
            rest.tokens[i] = (int32_t) n_whole + i;
        }
        rest.pad();
        enter_apart<SIZE>(race, rest, n_whole);
    }

  private:
    // Whether the highest noise there is would bring one of the tokens to the bar.
    template <int32_t N> static LUCEBOX_INLINE bool has_chance(const gumbel_race & race, const float * logits) {
        return !(in::template highest<N>(logits) < race.bar() - NO_SUCH_NOISE - room(race.bar()));
    }

    static LUCEBOX_INLINE void enter_run(gumbel_race & race, const float * logits, float scale, int32_t first_token,
                                         int64_t first_entry) {
        const int32_t n_groups = order_of_groups::N_GROUPS;
        field<SIZE>   runners;
        for (int32_t lane = 0; lane < 4; ++lane) {
            for (int32_t group = 0; group < n_groups; ++group) {
                runners.logits[lane * n_groups + group] = logits[4 * group + lane] * scale;
            }
        }
        if (!has_chance<SIZE>(race, runners.logits)) {
            return;
        }
        uint32_t groups[n_groups];
        for (int32_t i = 0; i < n_groups; ++i) {
            groups[i] = (uint32_t) (first_token / 4 + i);
        }
        for (int32_t first = 0; first < n_groups; first += LANES) {
            in::make_words(race.at, groups + first, runners.words + first, n_groups);
        }
        settle_likely(race, runners, order_of_groups{ first_token, first_entry });
    }

    // N: at least the tokens of the block.
    template <int32_t N>
    static LUCEBOX_INLINE void enter_apart(gumbel_race & race, const token_block & block, int64_t first_entry) {
        field<N> runners;
        for (int32_t begin = 0; begin < N; begin += LANES) {
            if (begin < block.n) {
                std::copy_n(block.logits + begin, LANES, runners.logits + begin);
            } else {
                std::fill_n(runners.logits + begin, LANES, -INFINITY);
            }
        }
        if (!has_chance<N>(race, runners.logits)) {
            return;
        }
        for (int32_t begin = 0; begin < N; begin += LANES) {
            if (begin >= block.n) {
                std::fill_n(runners.words + begin, LANES, 0);
                continue;
            }
            const int32_t * tokens = block.tokens + begin;
            uint32_t        groups[LANES];
            uint32_t        made[4][LANES];
            for (int32_t i = 0; i < LANES; ++i) {
                groups[i] = (uint32_t) tokens[i] / 4;
            }
            in::make_words(race.at, groups, made[0], LANES);
            for (int32_t i = 0; i < LANES; ++i) {
                const uint32_t low       = tokens[i] & 1 ? made[1][i] : made[0][i];
                const uint32_t high      = tokens[i] & 1 ? made[3][i] : made[2][i];
                runners.words[begin + i] = tokens[i] & 2 ? high : low;
            }
        }
        settle_likely(race, runners, order_of_block{ block, first_entry });
    }

    // Those that may come before the bar, the likeliest of them first: then hardly another one needs its exact sum.
    template <int32_t N, typename order_of_tokens>
    static LUCEBOX_INLINE void settle_likely(gumbel_race & race, const field<N> & runners, const order_of_tokens & order) {
        float at_most[N];
        for (int32_t i = 0; i < N; ++i) {
            at_most[i] = runners.logits[i] + noise_at_most(runners.words[i]);
        }
        for (;;) {
            const float top = in::template highest<N>(at_most);
            if (!(top > -INFINITY) || top < race.bar() - room(race.bar())) {
                return;
            }
            const int32_t i = place_of(at_most, top);
            race.settle(runners.logits[i], order.token(i), runners.words[i], order.entry(i));
            at_most[i] = -INFINITY;
        }
    }
};

namespace {

void enter_any(gumbel_race & race, const token_block & block, int64_t first_entry) {
    race_in_lanes<in_any>::enter(race, block, first_entry);
}

void enter_row_any(gumbel_race & race, const float * logits, int64_t n, float scale) {
    race_in_lanes<in_any>::enter_row(race, logits, n, scale);
}

#ifdef LUCEBOX_X86_FORMS
LUCEBOX_AVX2 void enter_avx2(gumbel_race & race, const token_block & block, int64_t first_entry) {
    race_in_lanes<in_avx2>::enter(race, block, first_entry);
}

LUCEBOX_AVX2 void enter_row_avx2(gumbel_race & race, const float * logits, int64_t n, float scale) {
    race_in_lanes<in_avx2>::enter_row(race, logits, n, scale);
}

LUCEBOX_AVX512 void enter_avx512(gumbel_race & race, const token_block & block, int64_t first_entry) {
    race_in_lanes<in_avx512>::enter(race, block, first_entry);
}

LUCEBOX_AVX512 void enter_row_avx512(gumbel_race & race, const float * logits, int64_t n, float scale) {
    race_in_lanes<in_avx512>::enter_row(race, logits, n, scale);
}
#endif

struct forms {
    void (*enter)(gumbel_race &, const token_block &, int64_t);
    void (*enter_row)(gumbel_race &, const float *, int64_t, float);
};

forms forms_of_this_cpu() {
    switch (lanes_of_this_cpu()) {
#ifdef LUCEBOX_X86_FORMS
        case lanes::AVX512:
            return { enter_avx512, enter_row_avx512 };
        case lanes::AVX2:
            return { enter_avx2, enter_row_avx2 };
#endif
        default:
            return { enter_any, enter_row_any };
    }
}

const forms FORMS = forms_of_this_cpu();

} // namespace

float token_block::highest() const {
    float found = -INFINITY;
    for (int32_t i = 0; i < n_padded(); i += LANES) {
        found = std::max(found, in_any::highest<LANES>(logits + i));
    }
    return found;
}

void gumbel_race::enter(const token_block & block, int64_t first_entry) {
    FORMS.enter(*this, block, first_entry);
}

void gumbel_race::enter_row(const float * logits, int64_t n, float scale) {
    FORMS.enter_row(*this, logits, n, scale);
}

void gumbel_race::settle(float logit, int32_t token, uint32_t word, int64_t entry) {
    const double score = (double) logit + gumbel_of(word);
    if (score > first || (score == first && winner >= 0 && token < winning_token)) {
        second        = first;
        first         = score;
        winner        = entry;
        winning_token = token;
    } else if (score > second) {
        second = score;
    }
}

} // namespace lucebox
