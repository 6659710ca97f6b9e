// One pass over the logits finds the highest of each class of rows. A number that enough of those reach, but hardly more,
// bounds what has to be listed; it is found by halving, as it need not be the best bound. The few that reach it are put in
// order by counting for each how many are higher, which takes no branches.
#include "top_candidates.h"

#include "lanes.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace lucebox {

namespace {

const int32_t FEW_CLASSES  = 256;
const int32_t MANY_CLASSES = 1024;
const int32_t MAX_HALVINGS = 12;  // then the bound is exact, whatever it costs
const int32_t MAX_COUNTED  = 128; // more are sorted: to count takes their square
const int32_t BLOCK        = 16;  // rows that are looked at together

bool is_before(const candidate & a, const candidate & b) {
    return a.logit > b.logit || (a.logit == b.logit && a.row < b.row);
}

// Rows of a class are n_classes apart.
LUCEBOX_INLINE void find_highest(const float * logits, int64_t n, int32_t n_classes, float * highest) {
    for (int32_t c = 0; c < n_classes; ++c) {
        highest[c] = -INFINITY;
    }
    int64_t begin = 0;
    for (; begin + n_classes <= n; begin += n_classes) {
        for (int32_t c = 0; c < n_classes; ++c) {
            highest[c] = logits[begin + c] > highest[c] ? logits[begin + c] : highest[c];
        }
    }
    for (int32_t c = 0; begin + c < n; ++c) {
        highest[c] = logits[begin + c] > highest[c] ? logits[begin + c] : highest[c];
    }
}

LUCEBOX_INLINE int32_t count_from(const float * values, int32_t n, float bound) {
    int32_t count = 0;
    for (int32_t i = 0; i < n; ++i) {
        count += values[i] >= bound;
    }
    return count;
}

// A bound that at least n_top of the values reach, and not many more if halving finds one; -INFINITY if it does not.
LUCEBOX_INLINE float halve(const float * values, int32_t n, int32_t n_top) {
    float low  = INFINITY;
    float high = -INFINITY;
    for (int32_t i = 0; i < n; ++i) {
        low  = values[i] < low ? values[i] : low;
        high = values[i] > high ? values[i] : high;
    }
    for (int32_t i = 0; i < MAX_HALVINGS && low > -INFINITY && high < INFINITY; ++i) {
        const float   middle = low + 0.5f * (high - low);
        const int32_t count  = count_from(values, n, middle);
        (count >= n_top ? low : high) = middle;
        if (count >= n_top && count <= n_top + n_top / 4) {
            return middle;
        }
    }
    return -INFINITY;
}

// Whether one of a block of logits reaches the bound.
inline bool any_from(const float * logits, float bound) {
    int32_t any = 0;
    for (int32_t i = 0; i < BLOCK; ++i) {
        any |= logits[i] >= bound;
    }
    return any != 0;
}

#ifdef LUCEBOX_X86_FORMS
// Compilers keep 16 answers apart for long.
LUCEBOX_AVX2 inline bool any_from_avx2(const float * logits, float bound) {
    const __m256 wanted = _mm256_set1_ps(bound);
    const __m256 low    = _mm256_cmp_ps(_mm256_loadu_ps(logits), wanted, _CMP_GE_OQ);
    const __m256 high   = _mm256_cmp_ps(_mm256_loadu_ps(logits + 8), wanted, _CMP_GE_OQ);
    return _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0;
}
#endif

// Writes the blocks of rows that have one from `bound` on; says how many there are. `blocks` has room for all.
template <bool (*any)(const float *, float)>
LUCEBOX_INLINE int64_t list_blocks(const float * logits, int64_t n_blocks, float bound, int32_t * blocks) {
    int64_t n = 0;
    for (int64_t block = 0; block < n_blocks; ++block) {
        blocks[n] = (int32_t) block;
        n += any(logits + block * BLOCK, bound) ? 1 : 0;
    }
    return n;
}

// ranks[i] becomes the number of those that are higher.
LUCEBOX_INLINE void count_higher(const float * logits, int32_t n, int32_t * ranks) {
    for (int32_t i = 0; i < MAX_COUNTED; ++i) {
        ranks[i] = 0;
    }
    const int32_t n_padded = (n + 7) / 8 * 8;
    for (int32_t other = 0; other < n; ++other) {
        for (int32_t i = 0; i < n_padded; ++i) {
            ranks[i] += logits[other] > logits[i];
        }
    }
}

struct kernels {
    void (*find_highest)(const float *, int64_t, int32_t, float *);
    float (*halve)(const float *, int32_t, int32_t);
    int64_t (*list_blocks)(const float *, int64_t, float, int32_t *);
    void (*count_higher)(const float *, int32_t, int32_t *);
};

#ifdef LUCEBOX_X86_FORMS
LUCEBOX_AVX2 void find_highest_avx2(const float * logits, int64_t n, int32_t n_classes, float * highest) {
    find_highest(logits, n, n_classes, highest);
}

LUCEBOX_AVX2 float halve_avx2(const float * values, int32_t n, int32_t n_top) {
    return halve(values, n, n_top);
}

LUCEBOX_AVX2 int64_t list_blocks_avx2(const float * logits, int64_t n_blocks, float bound, int32_t * blocks) {
    return list_blocks<any_from_avx2>(logits, n_blocks, bound, blocks);
}

LUCEBOX_AVX2 void count_higher_avx2(const float * logits, int32_t n, int32_t * ranks) {
    count_higher(logits, n, ranks);
}

const kernels IN_AVX2 = { find_highest_avx2, halve_avx2, list_blocks_avx2, count_higher_avx2 };
#endif

const kernels IN_ANY = { find_highest, halve, list_blocks<any_from>, count_higher };

kernels kernels_of_this_cpu() {
#ifdef LUCEBOX_X86_FORMS
    return lanes_of_this_cpu() == lanes::ANY ? IN_ANY : IN_AVX2;
#else
    return IN_ANY;
#endif
}

// At least n_top logits reach it; -INFINITY if nothing better is known.
float find_bound(const kernels & in, const float * logits, int64_t n, int64_t n_top) {
    const int32_t n_classes = 4 * n_top <= FEW_CLASSES ? FEW_CLASSES : MANY_CLASSES;
    if (2 * n_top > n_classes || n < 2 * n_classes) {
        return -INFINITY;
    }
    float highest[MANY_CLASSES];
    in.find_highest(logits, n, n_classes, highest);
    const float bound = in.halve(highest, n_classes, (int32_t) n_top);
    if (bound > -INFINITY) {
        return bound;
    }
    std::nth_element(highest, highest + n_top - 1, highest + n_classes, std::greater<float>());
    return highest[n_top - 1];
}

void sort_few(const kernels & in, candidate * list, int32_t n) {
    alignas(32) float   logits[MAX_COUNTED];
    alignas(32) int32_t ranks[MAX_COUNTED];
    candidate           sorted[MAX_COUNTED];
    int32_t             n_placed[MAX_COUNTED] = {};

    for (int32_t i = 0; i < MAX_COUNTED; ++i) {
        logits[i] = i < n ? list[i].logit : -INFINITY;
    }
    in.count_higher(logits, n, ranks);
    for (int32_t i = 0; i < n; ++i) { // equals have the same rank, and stay in order
        sorted[ranks[i] + n_placed[ranks[i]]++] = list[i];
    }
    std::copy_n(sorted, n, list);
}

void take_top_in(const kernels & in, const float * logits, int64_t n, int64_t n_top, std::vector<candidate> & out) {
    thread_local std::vector<int32_t>   blocks; // so that a draft allocates nothing
    thread_local std::vector<candidate> listed;

    const float   bound    = find_bound(in, logits, n, n_top);
    const int64_t n_blocks = n / BLOCK;
    blocks.resize((size_t) n_blocks + 1);
    const int64_t n_listed = in.list_blocks(logits, n_blocks, bound, blocks.data());

    listed.resize(std::max(listed.size(), (size_t) ((n_listed + 1) * BLOCK)));
    int64_t n_kept = 0;
    for (int64_t b = 0; b <= n_listed; ++b) { // the last is what is left behind the blocks
        const int64_t begin = b < n_listed ? (int64_t) blocks[(size_t) b] * BLOCK : n_blocks * BLOCK;
        const int64_t end   = std::min(n, begin + BLOCK);
        for (int64_t row = begin; row < end; ++row) {
            listed[(size_t) n_kept] = { logits[row], (int32_t) row };
            n_kept += (logits[row] >= bound) & (logits[row] > -INFINITY);
        }
    }
    if (n_kept <= MAX_COUNTED) {
        sort_few(in, listed.data(), (int32_t) n_kept);
    } else {
        std::sort(listed.begin(), listed.begin() + n_kept, is_before);
    }
    out.assign(listed.begin(), listed.begin() + std::min(n_kept, n_top));
}

} // namespace

void take_top(const float * logits, int64_t n, int64_t n_top, std::vector<candidate> & out) {
    static const kernels in = kernels_of_this_cpu();
    take_top_in(in, logits, n, n_top, out);
}

} // namespace lucebox
