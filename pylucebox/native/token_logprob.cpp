#include "token_logprob.h"

#include "exp_of.h"
#include "lanes.h"

#include <algorithm>
#include <cmath>

namespace lucebox {

namespace {

const size_t N_SUMS = 32; // kept beside each other, so that no addition waits for another

LUCEBOX_INLINE float logprob(const float * logits, size_t n_logits, size_t token) {
    float  highest[N_SUMS];
    float  sums[N_SUMS] = {};
    size_t begin        = 0;
    std::fill_n(highest, N_SUMS, logits[token]);
    for (; begin + N_SUMS <= n_logits; begin += N_SUMS) {
        for (size_t i = 0; i < N_SUMS; ++i) {
            highest[i] = logits[begin + i] > highest[i] ? logits[begin + i] : highest[i];
        }
    }
    for (size_t i = 0; begin + i < n_logits; ++i) {
        highest[i] = logits[begin + i] > highest[i] ? logits[begin + i] : highest[i];
    }
    float most = highest[0];
    for (size_t i = 1; i < N_SUMS; ++i) {
        most = highest[i] > most ? highest[i] : most;
    }
    for (begin = 0; begin + N_SUMS <= n_logits; begin += N_SUMS) {
        for (size_t i = 0; i < N_SUMS; ++i) {
            sums[i] += exp_of(logits[begin + i] - most);
        }
    }
    for (size_t i = 0; begin + i < n_logits; ++i) {
        sums[i] += exp_of(logits[begin + i] - most);
    }
    float sum = 0.0f;
    for (const float part : sums) {
        sum += part;
    }
    return logits[token] - most - std::log(sum);
}

float in_any(const float * logits, size_t n_logits, size_t token) {
    return logprob(logits, n_logits, token);
}

#ifdef LUCEBOX_X86_FORMS
LUCEBOX_AVX2 float in_avx2(const float * logits, size_t n_logits, size_t token) {
    return logprob(logits, n_logits, token);
}
#else
const auto in_avx2 = in_any;
#endif

} // namespace

float token_logprob(const float * logits, size_t n_logits, int32_t token) {
    if (logits == nullptr || token < 0 || (size_t) token >= n_logits) {
        return NAN;
    }
    static const auto in_lanes = lanes_of_this_cpu() == lanes::ANY ? in_any : in_avx2;
    return in_lanes(logits, n_logits, (size_t) token);
}

} // namespace lucebox
