// Gumbel noise that is a function of seed, position and token: the same bits on every machine, in any order.
//
// The uniform numbers are those of Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2,
// 3, SC 2011), a counter-based generator with published test vectors. The logarithm is ours, because those of C libraries
// and devices differ in the last digits. It needs nothing but IEEE additions, multiplications and divisions of doubles.
// Host sources that include this are to be compiled without contraction into fused operations (-ffp-contract=off); device
// code takes the rounding intrinsics.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__) || defined(__HIPCC__)
#    define LUCEBOX_HD __host__ __device__
#else
#    define LUCEBOX_HD
#endif

namespace lucebox {

struct philox_block {
    uint32_t word[4];
};

LUCEBOX_HD inline philox_block philox4x32(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t even = (uint64_t) 0xD2511F53u * c0;
        const uint64_t odd  = (uint64_t) 0xCD9E8D57u * c2;
        c0 = (uint32_t) (odd >> 32) ^ c1 ^ k0;
        c1 = (uint32_t) odd;
        c2 = (uint32_t) (even >> 32) ^ c3 ^ k1;
        c3 = (uint32_t) even;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return { { c0, c1, c2, c3 } };
}

namespace exact {

#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
LUCEBOX_HD inline double add(double a, double b) { return __dadd_rn(a, b); }
LUCEBOX_HD inline double mul(double a, double b) { return __dmul_rn(a, b); }
LUCEBOX_HD inline double div(double a, double b) { return __ddiv_rn(a, b); }
#else
LUCEBOX_HD inline double add(double a, double b) { return a + b; }
LUCEBOX_HD inline double mul(double a, double b) { return a * b; }
LUCEBOX_HD inline double div(double a, double b) { return a / b; }
#endif

// a + z * b
LUCEBOX_HD inline double step(double a, double z, double b) { return add(a, mul(z, b)); }

// Natural logarithm of a positive, normal number. With x = m 2^e and m between sqrt(1/2) and sqrt(2), and s = (m - 1) /
// (m + 1): ln m = 2 artanh s = 2 s (1 + s^2/3 + s^4/5 + ...). |s| is at most 0.172, so what is left out is below 2^-60.
LUCEBOX_HD inline double log(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    int32_t e = (int32_t) (bits >> 52) - 1023;
    bits      = (bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
    double m;
    memcpy(&m, &bits, sizeof(m));
    const bool is_high = m > 1.4142135623730951; // no branch, as nobody could predict it
    m                  = is_high ? mul(m, 0.5) : m;
    e += is_high;
    const double s  = div(add(m, -1.0), add(m, 1.0));
    const double z  = mul(s, s);
    const double z2 = mul(z, z);
    const double z4 = mul(z2, z2);
    const double z8 = mul(z4, z4);
    // pairs, then pairs of these: the chain of dependent operations is short
    const double a = step(step(1.0, z, 1.0 / 3.0), z2, step(1.0 / 5.0, z, 1.0 / 7.0));
    const double b = step(step(1.0 / 9.0, z, 1.0 / 11.0), z2, step(1.0 / 13.0, z, 1.0 / 15.0));
    const double c = step(step(1.0 / 17.0, z, 1.0 / 19.0), z2, 1.0 / 21.0);
    const double p = step(step(a, z4, b), z8, c);
    // ln 2 in two parts, of which the first has so few digits that its product with e is exact
    const double high = mul((double) e, 0x1.62e42p-1);
    const double low  = mul((double) e, 0x1.fdf473de6af28p-22);
    return add(high, add(mul(mul(2.0, s), p), low));
}

} // namespace exact

// "lucebox" in the generator's key keeps its streams apart from those of others that use the same seeds.
constexpr uint32_t NOISE_KEY = 0x6c756365u;

// The random words of tokens 4 * group to 4 * group + 3. `draw` counts the draws of one position: 0, unless a grammar
// turned the first one down.
LUCEBOX_HD inline philox_block noise_words(uint32_t seed, uint32_t position, uint32_t draw, uint32_t group) {
    return philox4x32(group, position, draw, 0, seed, NOISE_KEY);
}

// Standard Gumbel noise of a random word: -ln(-ln u), u the middle of one of 2^32 equal parts of (0, 1).
LUCEBOX_HD inline double gumbel_of(uint32_t word) {
    const double u = exact::mul(exact::add((double) word, 0.5), 0x1p-32);
    return -exact::log(-exact::log(u));
}

} // namespace lucebox
