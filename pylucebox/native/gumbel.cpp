#include "gumbel.h"

#include "exp_of.h"
#include "gumbel_noise.h"
#include "gumbel_race.h"
#include "top_candidates.h"

#include "llama-ext.h"
#include "llama.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

namespace lucebox {

namespace {

// The most tokens that a draft looks at if the request filters tokens, but not by number. What lies behind them is no
// likely draft, and sorting all would cost more than the draft.
const int64_t MAX_CANDIDATES = 256;

// ---- the sampler

struct gumbel_sampler {
    uint32_t seed_wanted; // LLAMA_DEFAULT_SEED: another one for each sampler, and after each reset
    uint32_t seed;
    uint32_t position = 0; // of the token to be drawn: the tokens accepted so far
    uint32_t draw     = 0;
};

uint32_t seed_of(uint32_t wanted) {
    return wanted != LLAMA_DEFAULT_SEED ? wanted : (uint32_t) std::random_device{}();
}

gumbel_sampler & self(const llama_sampler * sampler) {
    return *(gumbel_sampler *) sampler->ctx;
}

const char * name_of(const llama_sampler *) {
    return "gumbel";
}

void accept(llama_sampler * sampler, llama_token) {
    gumbel_sampler & s = self(sampler);
    s.position += 1;
    s.draw = 0;
}

// The candidates from `begin` on, as many as fit.
void take(const llama_token_data_array & candidates, size_t begin, token_block & block) {
    const llama_token_data * data = candidates.data + begin;
    block.n                       = (int32_t) std::min<size_t>(token_block::SIZE, candidates.size - begin);
    for (int32_t i = 0; i < block.n; ++i) {
        block.logits[i] = data[i].logit;
        block.tokens[i] = data[i].id;
    }
    block.pad();
}

// The first of those with the highest logit.
size_t find_highest(const llama_token_data_array & candidates) {
    size_t      found = 0;
    token_block block;
    for (size_t begin = 0; begin < candidates.size && !candidates.sorted; begin += token_block::SIZE) {
        take(candidates, begin, block);
        if (block.highest() > candidates.data[found].logit) {
            found = begin + (size_t) (std::max_element(block.logits, block.logits + block.n) - block.logits);
        }
    }
    return found;
}

// Writes e^(logit - highest) of the candidates of a block, and returns the sum.
double write_weights(const token_block & block, float highest, llama_token_data * data) {
    const int32_t N_SUMS = 8; // whatever the vectors: the sum has the same bits
    float         weights[token_block::SIZE];
    float         sums[N_SUMS] = {};
    for (int32_t i = 0; i < block.n_padded(); ++i) {
        weights[i] = exp_of(block.logits[i] - highest);
    }
    for (int32_t i = 0; i < block.n_padded(); i += N_SUMS) {
        for (int32_t lane = 0; lane < N_SUMS; ++lane) {
            sums[lane] += weights[i + lane];
        }
    }
    for (int32_t i = 0; i < block.n; ++i) {
        data[i].p = weights[i];
    }
    return std::accumulate(sums, sums + N_SUMS, 0.0);
}

// Beside the draw, probabilities are left as `dist` does, for those who ask which tokens could have been drawn.
void apply(llama_sampler * sampler, llama_token_data_array * candidates) {
    gumbel_sampler & s = self(sampler);
    const uint32_t   draw = s.draw;
    s.draw                = 0;
    candidates->selected  = candidates->size == 0 ? -1 : 0;
    if (candidates->size == 0) {
        return;
    }
    llama_token_data * const data = candidates->data;
    if (candidates->size == 1) {
        data[0].p = 1.0f;
        return;
    }
    const size_t at      = find_highest(*candidates);
    const float  highest = data[at].logit;
    gumbel_race  race(s.seed, s.position, draw, 1);
    token_block  block;
    if (at > 0) { // first, as it may leave the others little to hope for
        block.n         = 1;
        block.logits[0] = highest;
        block.tokens[0] = data[at].id;
        block.pad();
        race.enter(block, (int64_t) at);
    }
    double sum = 0.0;
    for (size_t begin = 0; begin < candidates->size; begin += token_block::SIZE) {
        take(*candidates, begin, block);
        race.enter(block, (int64_t) begin);
        sum += write_weights(block, highest, data + begin);
    }
    const float scale = (float) (1.0 / sum);
    for (size_t i = 0; i < candidates->size; ++i) {
        data[i].p *= scale;
    }
    candidates->selected = std::max<int64_t>(0, race.winner);
}

void reset(llama_sampler * sampler) {
    gumbel_sampler & s = self(sampler);
    s                  = { s.seed_wanted, seed_of(s.seed_wanted) };
}

void free_sampler(llama_sampler * sampler) {
    delete &self(sampler);
}

void copy_state(const llama_sampler * from, llama_sampler * to) {
    self(to) = self(from);
}

llama_sampler * clone(const llama_sampler * sampler);

llama_sampler_i interface = {
    /* .name              = */ name_of,
    /* .accept            = */ accept,
    /* .apply             = */ apply,
    /* .reset             = */ reset,
    /* .clone             = */ clone,
    /* .free              = */ free_sampler,
    /* .backend_init      = */ nullptr,
    /* .backend_accept    = */ nullptr,
    /* .backend_apply     = */ nullptr,
    /* .backend_set_input = */ nullptr,
    /* .backend_reset     = */ nullptr,
    /* .copy_state        = */ copy_state,
};

llama_sampler * clone(const llama_sampler * sampler) {
    return llama_sampler_init(&interface, new gumbel_sampler(self(sampler)));
}

bool is_gumbel(const llama_sampler * sampler) {
    return sampler != nullptr && sampler->iface == &interface;
}

// The sampler itself, or the last one of a chain; null if that is another one.
llama_sampler * find(llama_sampler * chain) {
    if (is_gumbel(chain)) {
        return chain;
    }
    if (chain == nullptr || llama_sampler_chain_get(chain, -1) == nullptr || llama_sampler_chain_n(chain) == 0) {
        return nullptr;
    }
    llama_sampler * last = llama_sampler_chain_get(chain, llama_sampler_chain_n(chain) - 1);
    return is_gumbel(last) ? last : nullptr;
}

// ---- drafts

// Cuts a list of candidates, highest first, as the sampler of that name does.
void filter_candidates(const draft_pick::filter & filter, size_t min_keep, std::vector<candidate> & list) {
    size_t n_kept = list.size();
    switch (filter.what) {
        case draft_pick::TOP_K:
            n_kept = filter.value >= 1.0f ? std::min(n_kept, (size_t) filter.value) : n_kept;
            break;
        case draft_pick::TOP_P: {
            thread_local std::vector<float> weights;
            weights.resize(list.size());
            double sum = 0.0;
            for (size_t i = 0; i < list.size(); ++i) {
                weights[i] = std::exp(list[i].logit - list[0].logit);
                sum += weights[i];
            }
            double reached = 0.0;
            for (n_kept = 0; n_kept < list.size() && (reached < filter.value * sum || n_kept < min_keep);) {
                reached += weights[n_kept++];
            }
            break;
        }
        case draft_pick::MIN_P: {
            const float lowest = list[0].logit + std::log(filter.value);
            while (n_kept > min_keep && list[n_kept - 1].logit < lowest) {
                --n_kept;
            }
            break;
        }
        case draft_pick::TEMPERATURE:
            for (candidate & c : list) {
                c.logit /= filter.value;
            }
            break;
    }
    list.resize(std::max<size_t>(1, n_kept));
}

// How many of the highest logits matter; 0: all do.
int64_t n_candidates(const draft_pick & how, int64_t n) {
    bool filtered = false;
    for (int32_t i = 0; i < how.n_filters; ++i) {
        const draft_pick::filter & f = how.filters[i];
        if (f.what == draft_pick::TOP_K && f.value >= 1.0f && f.value < (float) n) {
            return (int64_t) f.value;
        }
        filtered = filtered || (f.what == draft_pick::TOP_P && f.value < 1.0f) ||
                   (f.what == draft_pick::MIN_P && f.value > 0.0f);
    }
    return filtered ? std::min(n, MAX_CANDIDATES) : 0;
}

float temperature_of(const draft_pick & how) {
    float temperature = 1.0f;
    for (int32_t i = 0; i < how.n_filters; ++i) {
        temperature *= how.filters[i].what == draft_pick::TEMPERATURE ? how.filters[i].value : 1.0f;
    }
    return temperature;
}

template <typename F> void enter_all(gumbel_race & race, int64_t n, const int32_t * ids, const F & entry) {
    token_block block;
    for (int64_t begin = 0; begin < n; begin += token_block::SIZE) {
        block.n = (int32_t) std::min<int64_t>(token_block::SIZE, n - begin);
        for (int32_t i = 0; i < block.n; ++i) {
            const candidate c = entry(begin + i);
            block.logits[i]   = c.logit;
            block.tokens[i]   = ids ? ids[c.row] : c.row;
        }
        block.pad();
        race.enter(block, begin);
    }
}

// How likely the trunk draws the same token, from the lead with which it won. Of what is at hand when a draft is made the
// lead foretells this best: Brier score 0.092 at depth 1 on the built-in model, where the top-1 probability has 0.104 and
// the base rate 0.146. The weights are those of a logistic regression there (scripts/coupled_drafts.py --raw).
float agreement_of(double lead) {
    return (float) (1.0 / (1.0 + std::exp(0.6 - 0.85 * lead)));
}

} // namespace

picked pick_draft(const draft_pick & how, int64_t position, const float * logits, const int32_t * ids, int64_t n) {
    if (!how.coupled) {
        return pick_likeliest(logits, n);
    }
    gumbel_race   race(how.seed, (uint32_t) (position + how.shift), 0, 2);
    const int64_t n_top = n_candidates(how, n);
    if (n_top == 0) {
        const float scale = 1.0f / temperature_of(how);
        if (ids == nullptr) {
            race.enter_row(logits, n, scale);
        } else {
            enter_all(race, n, ids, [&](int64_t i) { return candidate{ logits[i] * scale, (int32_t) i }; });
        }
    } else {
        thread_local std::vector<candidate> list; // so that a draft allocates nothing
        take_top(logits, n, n_top, list);
        if (list.empty()) { // no logit is a number
            return pick_likeliest(logits, n);
        }
        for (int32_t i = 0; i < how.n_filters && list.size() > 1; ++i) {
            filter_candidates(how.filters[i], (size_t) std::max(0, how.min_keep), list);
        }
        enter_all(race, (int64_t) list.size(), ids, [](int64_t i) { return list[(size_t) i]; });
        race.winner = list[(size_t) std::max<int64_t>(0, race.winner)].row;
    }
    return { (int32_t) std::max<int64_t>(0, race.winner), agreement_of(race.first - race.second) };
}

} // namespace lucebox

using namespace lucebox;

llama_sampler * llama_sampler_init_gumbel(uint32_t seed) {
    return llama_sampler_init(&interface, new gumbel_sampler{ seed, seed_of(seed) });
}

bool llama_sampler_gumbel_seed(const llama_sampler * chain, uint32_t * seed) {
    const llama_sampler * found = find(const_cast<llama_sampler *>(chain));
    if (found != nullptr && seed != nullptr) {
        *seed = self(found).seed;
    }
    return found != nullptr;
}

void llama_sampler_gumbel_set_position(llama_sampler * chain, uint32_t position) {
    if (llama_sampler * found = find(chain)) {
        self(found).position = position;
    }
}

void llama_sampler_gumbel_redraw(llama_sampler * chain) {
    if (llama_sampler * found = find(chain)) {
        self(found).draw = 1;
    }
}

double llama_gumbel_noise(uint32_t seed, uint32_t position, uint32_t draw, int32_t token) {
    return gumbel_of(noise_words(seed, position, draw, (uint32_t) token / 4).word[token % 4]);
}
