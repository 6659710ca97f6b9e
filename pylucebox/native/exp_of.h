#pragma once

#include "lanes.h"

#include <cstdint>
#include <cstring>

namespace lucebox {

// e^x of a number that is not above 0, to seven digits; 0 for those below -87, and for what is no number. The library's
// takes several times as long, since the compiler makes no vector instructions of it.
LUCEBOX_INLINE float exp_of(float x) {
    const float   within = x < -87.0f ? -87.0f : x;
    const float   whole  = within * 1.44269504f + 12582912.0f; // 1.5 * 2^23: rounds to a whole number
    const float   n      = whole - 12582912.0f;
    const float   r      = (within - n * 0.693359375f) + n * 2.12194440e-4f; // ln 2 in two parts, the first of few digits
    const float   tail   = 1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720)));
    const float   power  = 1.0f + r * (1.0f + r * (0.5f + r * tail));
    uint32_t      bits;
    uint32_t      shift;
    std::memcpy(&bits, &power, sizeof(bits));
    std::memcpy(&shift, &whole, sizeof(shift));
    bits += shift << 23; // of the whole number only the lowest bits stay
    float result;
    std::memcpy(&result, &bits, sizeof(result));
    return x >= -87.0f ? result : 0.0f;
}

} // namespace lucebox
