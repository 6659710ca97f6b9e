// What a draft does to foresee the draws of a sampler; the same in the engine and in the server.
#include "internal.h"

#ifdef LUCEBOX_GUMBEL
#    include "llama-ext.h"
#endif

namespace lucebox {

#ifdef LUCEBOX_GUMBEL
bool draws_with_gumbel(const common_sampler * chain, uint32_t * seed) {
    return llama_sampler_gumbel_seed(common_sampler_get(chain), seed);
}
#else
// built from a llama.cpp without the hook
bool draws_with_gumbel(const common_sampler *, uint32_t *) {
    return false;
}
#endif

draft_pick pick_of(const common_params_sampling & params, const common_sampler * chain) {
    draft_pick pick;
    float      temperature = 1.0f;
    pick.min_keep          = params.min_keep;
    for (const enum common_sampler_type type : params.samplers) {
        if (type == COMMON_SAMPLER_TYPE_TOP_K && params.top_k > 0) {
            pick.add(draft_pick::TOP_K, (float) params.top_k);
        } else if (type == COMMON_SAMPLER_TYPE_TOP_P && params.top_p < 1.0f) {
            pick.add(draft_pick::TOP_P, params.top_p);
        } else if (type == COMMON_SAMPLER_TYPE_MIN_P && params.min_p > 0.0f) {
            pick.add(draft_pick::MIN_P, params.min_p);
        } else if (type == COMMON_SAMPLER_TYPE_TEMPERATURE) {
            temperature = params.temp;
            pick.add(draft_pick::TEMPERATURE, params.temp);
        }
    }
    pick.coupled = temperature > 0.0f && draws_with_gumbel(chain, &pick.seed);
    return pick;
}

} // namespace lucebox
