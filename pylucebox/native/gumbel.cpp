#include "gumbel.h"

#include "gumbel_noise.h"

#include "llama-ext.h"
#include "llama.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace lucebox {

namespace {

// The most tokens that a draft looks at if the request filters tokens, but not by number. What lies behind them is no
// likely draft, and sorting all would cost more than the draft.
const int64_t MAX_CANDIDATES = 256;

// The random words of tokens at one position. Who asks for one token after the other gets them from blocks that are made
// side by side, which the compiler turns into vector instructions.
class noise_row {
  public:
    noise_row(uint32_t seed, uint32_t position, uint32_t draw) : seed(seed), position(position), draw(draw) {}

    uint32_t word(int32_t token) {
        const uint32_t group = (uint32_t) token / 4;
        const uint32_t ahead = group - first;
        if (ahead >= n_made) {
            make(group, ahead == n_made && n_made > 0 ? N_BLOCKS : 1);
        }
        return words[token % 4][group - first];
    }

  private:
    static const uint32_t N_BLOCKS = 32;

    void make(uint32_t group, uint32_t n) {
        first  = group;
        n_made = n;
        if (n == 1) {
            const philox_block block = noise_words(seed, position, draw, group);
            for (int lane = 0; lane < 4; ++lane) {
                words[lane][0] = block.word[lane];
            }
            return;
        }
        for (uint32_t i = 0; i < N_BLOCKS; ++i) {
            const philox_block block = noise_words(seed, position, draw, group + i);
            words[0][i] = block.word[0];
            words[1][i] = block.word[1];
            words[2][i] = block.word[2];
            words[3][i] = block.word[3];
        }
    }

    const uint32_t seed;
    const uint32_t position;
    const uint32_t draw;
    uint32_t       first  = 0;
    uint32_t       n_made = 0;
    uint32_t       words[4][N_BLOCKS];
};

// gumbel_of() by the library's logarithm of floats, which takes a fifth of the time. It errs by less than MAX_ERROR, on
// any machine; which of two candidates has the higher score is left to gumbel_of() where that could matter.
const double MAX_ERROR = 1e-3;

float gumbel_about(uint32_t word) {
    const float rest = ((float) ~word + 0.5f) * 0x1p-32f; // 1 - u, which keeps its digits where u is almost 1
    return -std::log(word >> 31 ? -std::log1p(-rest) : -std::log(((float) word + 0.5f) * 0x1p-32f));
}

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

// Probabilities of the candidates as `dist` leaves them, for those who ask which tokens could have been drawn.
void fill_probs(llama_token_data_array & candidates) {
    float highest = candidates.data[0].logit;
    for (size_t i = 1; i < candidates.size && !candidates.sorted; ++i) {
        highest = std::max(highest, candidates.data[i].logit);
    }
    double sum = 0.0;
    for (size_t i = 0; i < candidates.size; ++i) {
        candidates.data[i].p = std::exp(candidates.data[i].logit - highest);
        sum += candidates.data[i].p;
    }
    for (size_t i = 0; i < candidates.size; ++i) {
        candidates.data[i].p = (float) (candidates.data[i].p / sum);
    }
}

// Chooses among the candidates that may have the highest score. The order of the candidates does not matter: of equal ones
// the lowest token is drawn.
void settle(llama_token_data_array & candidates, noise_row & noise, double lowest) {
    double best = -INFINITY;
    for (size_t i = 0; i < candidates.size; ++i) {
        const llama_token_data & token = candidates.data[i];
        const uint32_t           word  = noise.word(token.id);
        if (token.logit + gumbel_bound(word) < lowest || token.logit == -INFINITY) {
            continue;
        }
        const double score = (double) token.logit + gumbel_of(word);
        if (score > best || (score == best && token.id < candidates.data[candidates.selected].id)) {
            best                = score;
            candidates.selected = (int64_t) i;
        }
    }
}

void apply(llama_sampler * sampler, llama_token_data_array * candidates) {
    gumbel_sampler & s = self(sampler);
    const uint32_t   draw = s.draw;
    s.draw                = 0;
    candidates->selected  = candidates->size == 0 ? -1 : 0;
    if (candidates->size == 0) {
        return;
    }
    fill_probs(*candidates);

    noise_row noise(s.seed, s.position, draw);
    double    best   = -INFINITY;
    double    second = -INFINITY;
    for (size_t i = 0; i < candidates->size; ++i) {
        const llama_token_data & token = candidates->data[i];
        const uint32_t           word  = noise.word(token.id);
        if (token.logit + gumbel_bound(word) < best - 2 * MAX_ERROR || token.logit == -INFINITY) {
            continue;
        }
        const double score = (double) token.logit + gumbel_about(word);
        if (score > best) {
            second               = best;
            best                 = score;
            candidates->selected = (int64_t) i;
        } else if (score > second) {
            second = score;
        }
    }
    if (!(best - second > 2 * MAX_ERROR)) {
        settle(*candidates, noise, best - 2 * MAX_ERROR);
    }
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

struct candidate {
    float   logit;
    int32_t row;
};

bool is_before(const candidate & a, const candidate & b) {
    return a.logit > b.logit || (a.logit == b.logit && a.row < b.row);
}

// The n_top highest logits, highest first.
void take_top(const float * logits, int64_t n, int64_t n_top, std::vector<candidate> & out) {
    const int64_t BLOCK = 16;

    out.clear();
    float lowest = -INFINITY; // of those taken, once there are enough
    for (int64_t begin = 0; begin < n; begin += BLOCK) {
        const int64_t end = std::min(n, begin + BLOCK);
        int           any = 0; // most blocks have none that counts; looking for one takes a few vector instructions
        for (int64_t i = begin; i < end; ++i) {
            any |= logits[i] > lowest;
        }
        if (!any) {
            continue;
        }
        for (int64_t i = begin; i < end; ++i) {
            if (!(logits[i] > lowest)) {
                continue;
            }
            const candidate found = { logits[i], (int32_t) i };
            if ((int64_t) out.size() == n_top) {
                out.pop_back();
            }
            out.insert(std::upper_bound(out.begin(), out.end(), found, is_before), found);
            if ((int64_t) out.size() == n_top) {
                lowest = out.back().logit;
            }
        }
    }
}

// Cuts a list of candidates, highest first, as the sampler of that name does.
void filter_candidates(const draft_pick::filter & filter, size_t min_keep, std::vector<candidate> & list) {
    size_t n_kept = list.size();
    switch (filter.what) {
        case draft_pick::TOP_K:
            n_kept = filter.value >= 1.0f ? std::min(n_kept, (size_t) filter.value) : n_kept;
            break;
        case draft_pick::TOP_P: {
            double sum = 0.0;
            for (const candidate & c : list) {
                sum += std::exp(c.logit - list[0].logit);
            }
            double reached = 0.0;
            for (n_kept = 0; n_kept < list.size() && (reached < filter.value * sum || n_kept < min_keep);) {
                reached += std::exp(list[n_kept++].logit - list[0].logit);
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

// Keeps the best two of what it is shown.
class race {
  public:
    race(const draft_pick & how, int64_t position, const int32_t * ids) :
        noise(how.seed, (uint32_t) position, 0),
        ids(ids) {}

    void enter(float logit, int32_t row) {
        const uint32_t word = noise.word(ids ? ids[row] : row);
        if (logit + gumbel_bound(word) < second || logit == -INFINITY) {
            return;
        }
        const double score = (double) logit + gumbel_about(word); // no draft needs more
        if (score > first) {
            second = first;
            first  = score;
            best   = row;
        } else if (score > second) {
            second = score;
        }
    }

    double  first  = -INFINITY;
    double  second = -INFINITY;
    int32_t best   = 0;

  private:
    noise_row       noise;
    const int32_t * ids;
};

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
    race          entrants(how, position, ids);
    const int64_t n_top = n_candidates(how, n);
    if (n_top == 0) {
        const float scale = 1.0f / temperature_of(how);
        for (int64_t i = 0; i < n; ++i) {
            entrants.enter(logits[i] * scale, (int32_t) i);
        }
    } else {
        thread_local std::vector<candidate> list; // so that a draft allocates nothing
        take_top(logits, n, n_top, list);
        for (int32_t i = 0; i < how.n_filters && list.size() > 1; ++i) {
            filter_candidates(how.filters[i], (size_t) std::max(0, how.min_keep), list);
        }
        for (const candidate & c : list) {
            entrants.enter(c.logit, c.row);
        }
    }
    return { entrants.best, agreement_of(entrants.first - entrants.second) };
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
    return gumbel_of(noise_row(seed, position, draw).word(token));
}
