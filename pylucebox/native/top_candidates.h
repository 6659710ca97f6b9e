// Part of libllama: the highest logits of a row, without sorting or listing the others.
#pragma once

#include <cstdint>
#include <vector>

namespace lucebox {

struct candidate {
    float   logit;
    int32_t row; // of the logits
};

// Lists the n_top highest of n logits, highest first, of equals the one of the lower row first. What is minus infinity or
// no number is never listed, so there may be fewer.
void take_top(const float * logits, int64_t n, int64_t n_top, std::vector<candidate> & out);

} // namespace lucebox
