// Random words of several groups of tokens side by side. Compilers find no good vector instructions for Philox by
// themselves: a product of two 32-bit words takes a lane of 64 bits, and what a lane's upper half holds does not matter
// before the end. So even and odd groups each have vectors of their own, in which no word ever moves to another lane.
#pragma once

#include "gumbel_noise.h"
#include "lanes.h"

#include <cstdint>

namespace lucebox {

// Groups that are computed at once.
constexpr int32_t PHILOX_LANES = 16;

// What all groups have in common.
struct noise_place {
    uint32_t seed;
    uint32_t position;
    uint32_t draw;
};

// Writes word w of groups[i] to words[w * stride + i], for PHILOX_LANES groups.
inline void philox_plain(const noise_place & at, const uint32_t * groups, uint32_t * words, int32_t stride) {
    for (int32_t i = 0; i < PHILOX_LANES; ++i) {
        const philox_block made = noise_words(at.seed, at.position, at.draw, groups[i]);
        for (int32_t w = 0; w < 4; ++w) {
            words[w * stride + i] = made.word[w];
        }
    }
}

#ifdef LUCEBOX_X86_FORMS

inline void philox_sse2(const noise_place & at, const uint32_t * groups, uint32_t * words, int32_t stride) {
    const __m128i m0 = _mm_set1_epi32((int) 0xD2511F53u);
    const __m128i m1 = _mm_set1_epi32((int) 0xCD9E8D57u);
    for (int32_t half = 0; half < PHILOX_LANES; half += 4) {
        const __m128i group = _mm_loadu_si128((const __m128i *) (groups + half));
        __m128i c[2][4];
        for (int32_t odd = 0; odd < 2; ++odd) {
            c[odd][0] = odd ? _mm_srli_epi64(group, 32) : group;
            c[odd][1] = _mm_set1_epi32((int) at.position);
            c[odd][2] = _mm_set1_epi32((int) at.draw);
            c[odd][3] = _mm_setzero_si128();
        }
        __m128i k0 = _mm_set1_epi32((int) at.seed);
        __m128i k1 = _mm_set1_epi32((int) NOISE_KEY);
        for (int32_t round = 0; round < 10; ++round) {
            for (auto & v : c) {
                const __m128i a = _mm_mul_epu32(v[0], m0);
                const __m128i b = _mm_mul_epu32(v[2], m1);
                v[0] = _mm_xor_si128(_mm_xor_si128(_mm_srli_epi64(b, 32), v[1]), k0);
                v[1] = b;
                v[2] = _mm_xor_si128(_mm_xor_si128(_mm_srli_epi64(a, 32), v[3]), k1);
                v[3] = a;
            }
            k0 = _mm_add_epi32(k0, _mm_set1_epi32((int) 0x9E3779B9u));
            k1 = _mm_add_epi32(k1, _mm_set1_epi32((int) 0xBB67AE85u));
        }
        const __m128i low = _mm_set1_epi64x(0xFFFFFFFF);
        for (int32_t w = 0; w < 4; ++w) {
            const __m128i both = _mm_or_si128(_mm_and_si128(c[0][w], low), _mm_slli_epi64(c[1][w], 32));
            _mm_storeu_si128((__m128i *) (words + w * stride + half), both);
        }
    }
}

LUCEBOX_AVX2 inline void philox_avx2(const noise_place & at, const uint32_t * groups, uint32_t * words, int32_t stride) {
    const __m256i m0 = _mm256_set1_epi32((int) 0xD2511F53u);
    const __m256i m1 = _mm256_set1_epi32((int) 0xCD9E8D57u);
    for (int32_t half = 0; half < PHILOX_LANES; half += 8) {
        const __m256i group = _mm256_loadu_si256((const __m256i *) (groups + half));
        __m256i       c[2][4];
        for (int32_t odd = 0; odd < 2; ++odd) {
            c[odd][0] = odd ? _mm256_srli_epi64(group, 32) : group;
            c[odd][1] = _mm256_set1_epi32((int) at.position);
            c[odd][2] = _mm256_set1_epi32((int) at.draw);
            c[odd][3] = _mm256_setzero_si256();
        }
        __m256i k0 = _mm256_set1_epi32((int) at.seed);
        __m256i k1 = _mm256_set1_epi32((int) NOISE_KEY);
        for (int32_t round = 0; round < 10; ++round) {
            for (auto & v : c) {
                const __m256i a = _mm256_mul_epu32(v[0], m0);
                const __m256i b = _mm256_mul_epu32(v[2], m1);
                v[0] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(b, 32), v[1]), k0);
                v[1] = b;
                v[2] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(a, 32), v[3]), k1);
                v[3] = a;
            }
            k0 = _mm256_add_epi32(k0, _mm256_set1_epi32((int) 0x9E3779B9u));
            k1 = _mm256_add_epi32(k1, _mm256_set1_epi32((int) 0xBB67AE85u));
        }
        for (int32_t w = 0; w < 4; ++w) {
            const __m256i both = _mm256_blend_epi32(c[0][w], _mm256_slli_epi64(c[1][w], 32), 0xAA);
            _mm256_storeu_si256((__m256i *) (words + w * stride + half), both);
        }
    }
}

LUCEBOX_AVX512 inline void philox_avx512(const noise_place & at, const uint32_t * groups, uint32_t * words, int32_t stride) {
    const int      xor_of_three = 0x96;
    const __mmask8 all          = 0xFF; // without a mask, some compilers warn of their own headers
    const __m512i  m0           = _mm512_set1_epi32((int) 0xD2511F53u);
    const __m512i  m1           = _mm512_set1_epi32((int) 0xCD9E8D57u);
    const __m512i  group        = _mm512_loadu_si512(groups);
    __m512i        c[2][4];
    for (int32_t odd = 0; odd < 2; ++odd) {
        c[odd][0] = odd ? _mm512_maskz_srli_epi64(all, group, 32) : group;
        c[odd][1] = _mm512_set1_epi32((int) at.position);
        c[odd][2] = _mm512_set1_epi32((int) at.draw);
        c[odd][3] = _mm512_setzero_si512();
    }
    __m512i k0 = _mm512_set1_epi32((int) at.seed);
    __m512i k1 = _mm512_set1_epi32((int) NOISE_KEY);
    for (int32_t round = 0; round < 10; ++round) {
        for (auto & v : c) {
            const __m512i a = _mm512_maskz_mul_epu32(all, v[0], m0);
            const __m512i b = _mm512_maskz_mul_epu32(all, v[2], m1);
            v[0] = _mm512_ternarylogic_epi32(_mm512_maskz_srli_epi64(all, b, 32), v[1], k0, xor_of_three);
            v[1] = b;
            v[2] = _mm512_ternarylogic_epi32(_mm512_maskz_srli_epi64(all, a, 32), v[3], k1, xor_of_three);
            v[3] = a;
        }
        k0 = _mm512_add_epi32(k0, _mm512_set1_epi32((int) 0x9E3779B9u));
        k1 = _mm512_add_epi32(k1, _mm512_set1_epi32((int) 0xBB67AE85u));
    }
    for (int32_t w = 0; w < 4; ++w) {
        const __m512i odd = _mm512_maskz_slli_epi64(all, c[1][w], 32);
        _mm512_storeu_si512(words + w * stride, _mm512_mask_blend_epi32(0xAAAA, c[0][w], odd));
    }
}

#endif

// Any processor that the library runs on has this one.
inline void philox_of_any_cpu(const noise_place & at, const uint32_t * groups, uint32_t * words, int32_t stride) {
#ifdef LUCEBOX_X86_FORMS
    philox_sse2(at, groups, words, stride);
#else
    philox_plain(at, groups, words, stride);
#endif
}

} // namespace lucebox
