// The request's sampler: upstream's chain with all its settings.
#include "internal.h"
#include "text_limits.h"

#include "json.h"
#ifdef LUCEBOX_GUMBEL
#    include "llama-ext.h"
#endif
#if __has_include("lucebox-candidates.h")
#    include "lucebox-candidates.h"
#    define LUCEBOX_FEW_CANDIDATES
#endif

#include <cmath>
#include <sstream>

namespace lucebox {

namespace {

// Tokens; more than any context holds.
const int32_t MAX_HISTORY = 1 << 24;

std::vector<std::string> split_names(const char * text) {
    std::vector<std::string> names;
    std::stringstream        stream(text);
    std::string              name;
    while (std::getline(stream, name, ';')) {
        if (!name.empty()) {
            names.push_back(name);
        }
    }
    return names;
}

std::vector<enum common_sampler_type> sampler_types(const char * text) {
    const auto names = split_names(text);
    const auto types = common_sampler_types_from_names(names);
    if (types.size() != names.size()) {
        fail(LUCEBOX_ERR_ARGUMENT, "'%s' names a sampler that upstream does not have", text);
    }
    return types;
}

void require_finite(const lucebox_sampler_params & p) {
    const float values[] = { p.top_p,          p.min_p,          p.xtc_probability, p.xtc_threshold,
                             p.typical_p,      p.temperature,    p.dynatemp_range,  p.dynatemp_exponent,
                             p.penalty_repeat, p.penalty_freq,   p.penalty_present, p.dry_multiplier,
                             p.dry_base,       p.adaptive_target, p.adaptive_decay, p.mirostat_tau,
                             p.mirostat_eta,   p.top_n_sigma };
    for (const float value : values) {
        if (!std::isfinite(value)) {
            fail(LUCEBOX_ERR_ARGUMENT, "a sampling parameter is not a finite number");
        }
    }
    if (p.mirostat < 0 || p.mirostat > 2) {
        fail(LUCEBOX_ERR_ARGUMENT, "mirostat is %d; it must be 0, 1 or 2", p.mirostat);
    }
    if (p.sampler_rng < LUCEBOX_RNG_AUTO || p.sampler_rng > LUCEBOX_RNG_GUMBEL) {
        fail(LUCEBOX_ERR_ARGUMENT, "sampler_rng is %d, which is no lucebox_rng", p.sampler_rng);
    }
}

// Upstream keeps so many tokens in a buffer that it allocates whole.
void require_history(const char * name, int32_t n_tokens) {
    if (n_tokens < -1 || n_tokens > MAX_HISTORY) {
        fail(LUCEBOX_ERR_ARGUMENT, "%s is %d; it must be -1..%d", name, n_tokens, MAX_HISTORY);
    }
}

void read_breakers(const char * text, std::vector<std::string> & out) {
    const common_json list = common_json::parse_no_throw(text);
    if (list.is_discarded() || !list.is_array()) {
        fail(LUCEBOX_ERR_ARGUMENT, "dry_sequence_breakers is not a JSON array");
    }
    out.clear();
    for (const common_json & item : list) {
        if (!item.is_string()) {
            fail(LUCEBOX_ERR_ARGUMENT, "dry_sequence_breakers has an entry that is not a string");
        }
        out.push_back(item.get<std::string>());
    }
}

// Grammar, triggers and thinking tags that the chat template brought along.
void apply_chat(const model_state & model, const char * chat_json, int32_t budget, common_params_sampling & out) {
    const common_json chat = common_json::parse_no_throw(chat_json);
    if (chat.is_discarded() || !chat.is_object()) {
        fail(LUCEBOX_ERR_ARGUMENT, "chat_json is not a JSON object");
    }
    const llama_vocab * vocab = model.vocab();

    out.generation_prompt     = chat.value("generation_prompt", "");
    const std::string grammar = chat.value("grammar", "");
    if (!grammar.empty()) {
        const bool is_schema = chat.value("grammar_is_schema", false);
        out.grammar = { is_schema ? COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT : COMMON_GRAMMAR_TYPE_TOOL_CALLS, grammar };
        out.grammar_lazy = chat.value("grammar_lazy", false);
    }
    for (const common_json & word : chat.value("preserved_tokens", common_json::array())) {
        const auto ids = common_tokenize(vocab, word.get<std::string>(), false, true);
        if (ids.size() == 1) {
            out.preserved_tokens.insert(ids[0]);
        }
    }
    for (const common_json & item : chat.value("grammar_triggers", common_json::array())) {
        common_grammar_trigger trigger;
        trigger.type  = (common_grammar_trigger_type) item.at("type").get<int>();
        trigger.value = item.value("value", "");
        trigger.token = item.value("token", (int) LLAMA_TOKEN_NULL);
        if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD) {
            // a word that is one token is matched as that token, whatever text it prints
            const auto ids = common_tokenize(vocab, trigger.value, false, true);
            if (ids.size() == 1) {
                trigger.type  = COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN;
                trigger.token = ids[0];
            }
        }
        out.grammar_triggers.push_back(trigger);
    }

    const common_json end_tags = chat.value("thinking_end_tags", common_json::array());
    if (!end_tags.empty()) {
        out.reasoning_budget_tokens = budget;
        out.reasoning_budget_start  = common_tokenize(vocab, chat.value("thinking_start_tag", ""), false, true);
        for (const common_json & tag : end_tags) {
            out.reasoning_budget_end.push_back(common_tokenize(vocab, tag.get<std::string>(), false, true));
        }
        out.reasoning_budget_forced = out.reasoning_budget_end.front();
    }
}

void read_params(const model_state & model, const lucebox_sampler_params & in, common_params_sampling & out) {
    require_finite(in);
    require_history("n_prev", in.n_prev);
    require_history("penalty_last_n", in.penalty_last_n);
    require_history("dry_penalty_last_n", in.dry_penalty_last_n);
    out.seed               = in.seed;
    out.n_prev             = in.n_prev;
    out.min_keep           = in.min_keep;
    out.top_k              = in.top_k;
    out.top_p              = in.top_p;
    out.min_p              = in.min_p;
    out.xtc_probability    = in.xtc_probability;
    out.xtc_threshold      = in.xtc_threshold;
    out.typ_p              = in.typical_p;
    out.temp               = in.temperature;
    out.dynatemp_range     = in.dynatemp_range;
    out.dynatemp_exponent  = in.dynatemp_exponent;
    out.penalty_last_n     = in.penalty_last_n;
    out.penalty_repeat     = in.penalty_repeat;
    out.penalty_freq       = in.penalty_freq;
    out.penalty_present    = in.penalty_present;
    out.dry_multiplier     = in.dry_multiplier;
    out.dry_base           = in.dry_base;
    out.dry_allowed_length = in.dry_allowed_length;
    out.dry_penalty_last_n = in.dry_penalty_last_n;
    out.adaptive_target    = in.adaptive_target;
    out.adaptive_decay     = in.adaptive_decay;
    out.mirostat           = in.mirostat;
    out.mirostat_tau       = in.mirostat_tau;
    out.mirostat_eta       = in.mirostat_eta;
    out.top_n_sigma        = in.top_n_sigma;
    out.ignore_eos         = in.ignore_eos;
    out.no_perf            = true;

    if (in.samplers != nullptr) {
        out.samplers = sampler_types(in.samplers);
    }
    if (in.dry_sequence_breakers != nullptr) {
        read_breakers(in.dry_sequence_breakers, out.dry_sequence_breakers);
    }
    if (in.n_logit_bias > 0) {
        needed(in.logit_bias, "logit_bias");
    }
    for (size_t i = 0; i < in.n_logit_bias; ++i) {
        const lucebox_logit_bias & bias = in.logit_bias[i];
        if (bias.token < 0 || bias.token >= model.n_vocab() || std::isnan(bias.bias)) {
            fail(LUCEBOX_ERR_ARGUMENT, "logit_bias has token %d; ids are 0..%d, and the bias must be a number",
                 bias.token, model.n_vocab() - 1);
        }
        out.logit_bias.push_back({ bias.token, bias.bias });
    }
    if (in.ignore_eos) {
        for (llama_token token = 0; token < model.n_vocab(); ++token) {
            if (llama_vocab_is_eog(model.vocab(), token)) {
                out.logit_bias.push_back({ token, -INFINITY });
            }
        }
    }
    if (in.chat_json != nullptr) {
        try {
            apply_chat(model, in.chat_json, in.reasoning_budget_tokens, out);
        } catch (const error &) {
            throw;
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception & e) {
            fail(LUCEBOX_ERR_ARGUMENT, "chat_json is not a result of lucebox_chat_render(): %s", e.what());
        }
    }
    if (in.grammar != nullptr && in.grammar[0] != '\0') {
        if (!out.grammar.empty()) {
            fail(LUCEBOX_ERR_ARGUMENT, "grammar is given, and the chat request brings one of its own");
        }
        out.grammar = { COMMON_GRAMMAR_TYPE_USER, in.grammar };
    }
    require_tame_grammar(common_grammar_value(out.grammar));
}

#ifdef LUCEBOX_GUMBEL
void choose_rng(int32_t rng, common_params_sampling & out) {
    out.gumbel         = rng != LUCEBOX_RNG_MT19937;
    const bool differs = rng == LUCEBOX_RNG_GUMBEL && std::strcmp(out.rng_name(), "gumbel") != 0;
    if (differs) {
        fail(LUCEBOX_ERR_ARGUMENT, "sampler_rng is gumbel, but mirostat and adaptive-p draw from streams of their own");
    }
}
#else
// built from a llama.cpp without the hook
void choose_rng(int32_t rng, common_params_sampling &) {
    if (rng == LUCEBOX_RNG_GUMBEL) {
        fail(LUCEBOX_ERR_ARGUMENT, "sampler_rng is gumbel, but this build's llama.cpp has no such sampler");
    }
}
#endif

#ifdef LUCEBOX_FEW_CANDIDATES
bool list_few(const lucebox_sampler & sampler, const float * logits, std::vector<llama_token_data> & out) {
    return lucebox_list_few(logits, sampler.model->vocab(), common_sampler_get(sampler.chain.get()), sampler.params, out);
}
#else
bool list_few(const lucebox_sampler &, const float *, std::vector<llama_token_data> &) {
    return false;
}
#endif

void list_all(const float * logits, size_t n_logits, std::vector<llama_token_data> & out) {
    out.resize(n_logits);
    for (size_t token = 0; token < n_logits; ++token) {
        out[token] = { (llama_token) token, logits[token], 0.0f };
    }
}

} // namespace

} // namespace lucebox

using namespace lucebox;

void lucebox_sampler_params_init(lucebox_sampler_params * params) {
    if (params == nullptr) {
        return;
    }
    const common_params_sampling upstream;
    *params                         = {};
    params->struct_size             = sizeof(*params);
    params->seed                    = 0;
    params->n_prev                  = upstream.n_prev;
    params->min_keep                = upstream.min_keep;
    params->top_k                   = upstream.top_k;
    params->top_p                   = upstream.top_p;
    params->min_p                   = upstream.min_p;
    params->xtc_probability         = upstream.xtc_probability;
    params->xtc_threshold           = upstream.xtc_threshold;
    params->typical_p               = upstream.typ_p;
    params->temperature             = upstream.temp;
    params->dynatemp_range          = upstream.dynatemp_range;
    params->dynatemp_exponent       = upstream.dynatemp_exponent;
    params->penalty_last_n          = upstream.penalty_last_n;
    params->penalty_repeat          = upstream.penalty_repeat;
    params->penalty_freq            = upstream.penalty_freq;
    params->penalty_present         = upstream.penalty_present;
    params->dry_multiplier          = upstream.dry_multiplier;
    params->dry_base                = upstream.dry_base;
    params->dry_allowed_length      = upstream.dry_allowed_length;
    params->dry_penalty_last_n      = upstream.dry_penalty_last_n;
    params->adaptive_target         = upstream.adaptive_target;
    params->adaptive_decay          = upstream.adaptive_decay;
    params->mirostat                = upstream.mirostat;
    params->mirostat_tau            = upstream.mirostat_tau;
    params->mirostat_eta            = upstream.mirostat_eta;
    params->top_n_sigma             = upstream.top_n_sigma;
    params->reasoning_budget_tokens = -1;
}

lucebox_status lucebox_sampler_open(const lucebox_model * model, const lucebox_sampler_params * params,
                                    lucebox_sampler ** out) {
    return guarded([&] {
        needed(out, "out") = nullptr;
        needed(model, "model");
        const auto             taken = take_params(params, lucebox_sampler_params_init);
        common_params_sampling upstream;
        read_params(*model->state, taken, upstream);
        choose_rng(taken.sampler_rng, upstream);

        auto              sampler = std::make_unique<lucebox_sampler>();
        const log_capture capture;
        sampler->model = model->state;
        try {
            sampler->chain.reset(common_sampler_init(model->state->trunk.get(), upstream));
        } catch (const std::bad_alloc &) {
            throw;
        } catch (const std::exception & e) {
            fail(LUCEBOX_ERR_ARGUMENT, "the sampler cannot be set up: %s",
                 capture.text_or(e.what()).c_str());
        }
        if (!sampler->chain) {
            fail(LUCEBOX_ERR_ARGUMENT, "the sampler cannot be set up: %s",
                 capture.text_or("upstream gave no reason").c_str());
        }
        sampler->pick   = pick_of(upstream, sampler->chain.get());
        sampler->params = std::move(upstream);
        *out            = sampler.release();
    });
}

void lucebox_sampler_close(lucebox_sampler * sampler) {
    delete sampler;
}

lucebox_status lucebox_sampler_describe(const lucebox_sampler * sampler, char ** out_text) {
    return guarded([&] {
        needed(out_text, "out_text");
        *out_text = copy_string(common_sampler_print(needed(sampler, "sampler").chain.get()));
    });
}

int32_t lucebox_sampler_rng(const lucebox_sampler * sampler) {
    return sampler != nullptr && draws_with_gumbel(sampler->chain.get(), nullptr) ? LUCEBOX_RNG_GUMBEL :
                                                                                   LUCEBOX_RNG_MT19937;
}

lucebox_status lucebox_sampler_draw(lucebox_sampler * sampler, const float * logits, size_t n_logits,
                                    int32_t whole, size_t n, int32_t * out_tokens) {
    return guarded([&] {
        llama_sampler * chain = common_sampler_get(needed(sampler, "sampler").chain.get());
        if (n_logits != (size_t) sampler->model->n_vocab()) {
            fail(LUCEBOX_ERR_ARGUMENT, "there are %zu logits; the vocabulary has %d tokens", n_logits,
                 sampler->model->n_vocab());
        }
        needed(logits, "logits");
        needed(out_tokens, "out_tokens");
        std::vector<llama_token_data> tokens;
        for (size_t i = 0; i < n; ++i) {
            const bool few = whole == 0 && list_few(*sampler, logits, tokens);
            if (!few) {
                list_all(logits, n_logits, tokens);
            }
            llama_token_data_array candidates = { tokens.data(), tokens.size(), -1, few };
            llama_sampler_apply(chain, &candidates);
            if (candidates.selected < 0 || (size_t) candidates.selected >= candidates.size) {
                fail(LUCEBOX_ERR_SAMPLING, "the sampler chose no token");
            }
            out_tokens[i] = candidates.data[candidates.selected].id;
            llama_sampler_accept(chain, out_tokens[i]);
        }
    });
}

void lucebox_gumbel_noise(uint32_t seed, uint32_t position, uint32_t draw, size_t n, double * out) {
    for (size_t i = 0; out != nullptr && i < n; ++i) {
#ifdef LUCEBOX_GUMBEL
        out[i] = llama_gumbel_noise(seed, position, draw, (int32_t) i);
#else
        (void) seed, (void) position, (void) draw;
        out[i] = NAN;
#endif
    }
}
