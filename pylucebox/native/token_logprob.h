#pragma once

#include <cstddef>
#include <cstdint>

namespace lucebox {

// The logarithm of a token's probability by a row of logits, before anything that a sampler does to them; to five digits.
// NaN where the logits give none.
float token_logprob(const float * logits, size_t n_logits, int32_t token);

} // namespace lucebox
