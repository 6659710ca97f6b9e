// Coverage-guided fuzzing of what lucebox.h checks: any order of calls with any arguments, but pointers that are NULL or
// right. Nothing may end the process, and nothing may fail for a reason that nobody thought of.
//
// Built and run by `scripts/fuzz api` with libFuzzer and the sanitizers. The model comes from LUCEBOX_FUZZ_MODEL.
#include "lucebox.h"

#include <fuzzer/FuzzedDataProvider.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

using fuzzed = FuzzedDataProvider;

const int32_t  N_CTX          = 64;
const uint32_t N_SEQ          = 2;
const int64_t  MAX_QUANTISED  = 1 << 16;
const int      MAX_CALLS      = 24;

struct world {
    lucebox_model *   model   = nullptr;
    lucebox_session * session = nullptr; // drafts
    lucebox_session * plain   = nullptr; // does not
    int32_t           n_vocab = 0;
    std::string       render; // of a chat request
    std::string       saved;  // a state
};

[[noreturn]] void stop(const char * call, const char * problem) {
    std::fprintf(stderr, "%s: %s: %s\n", call, problem, lucebox_last_error());
    std::abort();
}

lucebox_status checked(const char * call, lucebox_status status) {
    if (status < LUCEBOX_OK || status >= LUCEBOX_ERR_INTERNAL) {
        stop(call, "unexpected status");
    }
    if (status != LUCEBOX_OK && lucebox_last_error()[0] == '\0') {
        stop(call, "no error text");
    }
    return status;
}

void must(const char * call, lucebox_status status) {
    if (status != LUCEBOX_OK) {
        stop(call, "failed");
    }
}

std::string taken(char * text) {
    std::string copy = text != nullptr ? text : "";
    lucebox_string_free(text);
    return copy;
}

world & the_world() {
    static world * const opened = [] {
        auto * w = new world;
        lucebox_log_set([](int32_t, const char *, void *) {}, nullptr);
        must("backends", lucebox_backends_load(nullptr));
        lucebox_model_params params;
        lucebox_model_params_init(&params);
        params.path = std::getenv("LUCEBOX_FUZZ_MODEL");
        const char * mtp = std::getenv("LUCEBOX_FUZZ_MTP");
        params.mtp_path  = mtp;
        must("model", lucebox_model_open(&params, &w->model));
        lucebox_model_info info;
        info.struct_size = sizeof(info);
        must("info", lucebox_model_get_info(w->model, &info));
        w->n_vocab = info.n_vocab;
        lucebox_session_params session;
        lucebox_session_params_init(&session);
        session.n_ctx     = N_CTX;
        session.n_seq     = N_SEQ;
        session.n_ubatch  = 32;
        must("plain session", lucebox_session_open(w->model, &session, &w->plain));
        session.max_width = LUCEBOX_MAX_WIDTH;
        must("session", lucebox_session_open(w->model, &session, &w->session));
        char * out = nullptr;
        must("render", lucebox_chat_render(w->model, R"({"messages": [{"role": "user", "content": "x"}]})", &out));
        w->render = taken(out);
        return w;
    }();
    return *opened;
}

// ---- arguments --------------------------------------------------------------------------------------------------

bool rarely(fuzzed & data) {
    return data.ConsumeIntegralInRange<int>(0, 15) == 0;
}

int64_t odd(fuzzed & data) {
    static const int64_t values[] = { 0,  1,    2,    3,    7,       8,         9,         16,        31,       32,
                                      64, 65,   256,  4096, 1 << 16, 1LL << 31, 1LL << 32, 1LL << 61, INT64_MAX, -1,
                                      -2, -100, INT32_MAX, INT32_MIN, INT64_MIN };
    return rarely(data) ? data.ConsumeIntegral<int64_t>() : data.PickValueInArray(values);
}

float odd_float(fuzzed & data) {
    static const float values[] = { 0.0f, 1.0f, -1.0f, 0.5f, 0.95f, 1e-6f, 1e30f, -1e30f, 100.0f };
    return rarely(data) ? data.ConsumeFloatingPoint<float>() : data.PickValueInArray(values);
}

int32_t odd_token(fuzzed & data, int32_t n_vocab) {
    return rarely(data) ? (int32_t) odd(data) : data.ConsumeIntegralInRange<int32_t>(0, n_vocab - 1);
}

// A C string that lives until the input is over, or NULL.
class texts {
  public:
    const char * random(fuzzed & data, size_t most = 200) {
        return rarely(data) ? nullptr : keep(data.ConsumeRandomLengthString(most));
    }

    template <size_t N> const char * one_of(fuzzed & data, const char * const (&known)[N]) {
        return rarely(data) ? random(data) : data.PickValueInArray(known);
    }

    const char * keep(const std::string & text) {
        kept.push_back(std::make_unique<std::string>(text));
        return kept.back()->c_str();
    }

  private:
    std::vector<std::unique_ptr<std::string>> kept;
};

const char * const TYPES[]     = { "f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K", "iq4_nl", "iq2_xxs", "i32", "q8_1", "" };
const char * const DEVICES[]   = { "auto", "cpu", "CPU", "gpu99", "" };
const char * const SAMPLERS[]  = { "top_k;temperature", "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature", ";;", "no" };
const char * const BREAKERS[]  = { "[]", "[\"\\n\"]", "[1]", "{}", "[\"\"]", "[" };
const char * const GRAMMARS[]  = { "root ::= \"a\"+", "root ::= [0-9]{2,5}", "root ::= root", "root ::= ", "a ::= \"b\"",
                                   "root ::= (\"a\" | )*", "root ::= \"a\"{3,1}", "root ::= x" };
const char * const SCHEMAS[]   = { R"({"type": "object", "properties": {"a": {"type": "integer", "minimum": -5}}})",
                                   R"({"type": "string", "minLength": 3, "maxLength": 2})", R"({"enum": []})",
                                   R"({"$ref": "#"})", R"({"type": "array", "items": {}, "maxItems": -1})",
                                   R"({"type": "string", "pattern": "^[a-z]{1,3}$"})", R"({"pattern": "^(a"})", "1", "{}", "[" };
const char * const REQUESTS[]  = {
    R"({"messages": [{"role": "user", "content": "x"}]})", R"({"messages": []})", R"({"messages": 5})", "{}", "[]",
    R"({"messages": [{"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{"}}]}]})",
    R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image"}]}], "tools": [{}]})",
    R"({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"})",
    R"({"messages": [{"role": "user", "content": "x"}], "reasoning_format": "x", "chat_template_kwargs": {"a": [1]}})",
    R"({"messages": [{"role": "user", "content": null}], "json_schema": "{\"type\": \"object\"}", "enable_thinking": 5})",
};

// Text with one place changed.
std::string changed(fuzzed & data, std::string text) {
    if (!text.empty() && data.ConsumeBool()) {
        const size_t at = data.ConsumeIntegralInRange<size_t>(0, text.size() - 1);
        text.replace(at, data.ConsumeIntegralInRange<size_t>(0, 8), data.ConsumeRandomLengthString(8));
    }
    return text;
}

bool count_down(float, void * left) {
    return left == nullptr || --*(int *) left > 0;
}

// ---- calls ------------------------------------------------------------------------------------------------------

void call_library(fuzzed & data, texts & text) {
    char * out = nullptr;
    switch (data.ConsumeIntegralInRange<int>(0, 3)) {
        case 0: {
            const char *  type      = text.one_of(data, TYPES);
            const int64_t n_rows    = odd(data);
            const int64_t n_per_row = odd(data);
            const bool    fits      = n_rows > 0 && n_per_row > 0 && n_rows <= MAX_QUANTISED / n_per_row;
            std::vector<float> rows(fits ? (size_t) (n_rows * n_per_row) : 0, odd_float(data));
            size_t             size = 0;
            checked("quantize", lucebox_quantize(type, nullptr, n_rows, n_per_row, nullptr, 0, rarely(data) ? nullptr : &size));
            if (fits) {
                const size_t      capacity = rarely(data) ? 5 : size;
                std::vector<char> bytes(capacity);
                checked("quantize", lucebox_quantize(type, rarely(data) ? nullptr : rows.data(), n_rows, n_per_row,
                                                     bytes.data(), capacity, &size));
            }
            break;
        }
        case 1: checked("system_info", lucebox_system_info(rarely(data) ? nullptr : &out)); break;
        case 2: {
            const std::string schema = changed(data, data.PickValueInArray(SCHEMAS));
            checked("grammar_from_schema", lucebox_grammar_from_schema(rarely(data) ? nullptr : schema.c_str(), &out));
            break;
        }
        default: checked("grammar_from_schema", lucebox_grammar_from_schema(text.random(data), rarely(data) ? nullptr : &out));
    }
    lucebox_string_free(out);
}

void call_open_model(fuzzed & data, texts & text) {
    lucebox_model_params params;
    lucebox_model_params_init(rarely(data) ? nullptr : &params);
    lucebox_model_params_init(&params);
    const char * const paths[] = { std::getenv("LUCEBOX_FUZZ_MODEL"), std::getenv("LUCEBOX_FUZZ_MTP"), "", "/", "nowhere" };
    int left              = data.ConsumeIntegralInRange<int>(1, 3); // never loads a whole model: that would take the time
    params.path           = rarely(data) ? text.random(data) : data.PickValueInArray(paths);
    params.mtp_path       = data.ConsumeBool() ? nullptr : data.PickValueInArray(paths);
    params.mtp_in_file    = data.ConsumeBool();
    params.hidden_norm    = (int32_t) odd(data);
    params.n_gpu_layers   = (int32_t) odd(data);
    params.device         = text.one_of(data, DEVICES);
    params.use_mmap       = data.ConsumeBool();
    params.check_tensors  = data.ConsumeBool();
    params.progress       = count_down;
    params.progress_user_data = &left;
    if (rarely(data)) {
        params.struct_size = data.ConsumeIntegralInRange<size_t>(0, sizeof(params) + 8);
    }
    lucebox_model * model = nullptr;
    checked("model_open", lucebox_model_open(rarely(data) ? nullptr : &params, rarely(data) ? nullptr : &model));
    lucebox_model_close(model);
}

void call_model(fuzzed & data, texts & text, world & w) {
    const lucebox_model * model = rarely(data) ? nullptr : w.model;
    size_t                n     = 0;
    size_t *              out_n = rarely(data) ? nullptr : &n;
    char *                out   = nullptr;
    switch (data.ConsumeIntegralInRange<int>(0, 6)) {
        case 0: {
            lucebox_model_info info = {};
            info.struct_size        = data.ConsumeIntegralInRange<size_t>(0, sizeof(info));
            checked("get_info", lucebox_model_get_info(model, rarely(data) ? nullptr : &info));
            break;
        }
        case 1:
            checked("meta", lucebox_model_meta(model, text.random(data), rarely(data) ? nullptr : &out));
            break;
        case 2: {
            const std::string    input    = data.ConsumeRandomLengthString(300);
            const size_t         capacity = data.ConsumeIntegralInRange<size_t>(0, 400);
            std::vector<int32_t> tokens(capacity);
            const bool           null = rarely(data);
            checked("tokenize", lucebox_tokenize(model, rarely(data) ? nullptr : input.data(), input.size(), data.ConsumeBool(),
                                                 data.ConsumeBool(), null ? nullptr : tokens.data(), capacity, out_n));
            break;
        }
        case 3: {
            std::vector<char> bytes(data.ConsumeIntegralInRange<size_t>(0, 40));
            checked("token_bytes", lucebox_token_bytes(model, odd_token(data, w.n_vocab), data.ConsumeBool(),
                                                       rarely(data) ? nullptr : bytes.data(), bytes.size(), out_n));
            break;
        }
        case 4: {
            std::vector<int32_t> tokens(data.ConsumeIntegralInRange<size_t>(0, 20));
            for (int32_t & token : tokens) {
                token = odd_token(data, w.n_vocab);
            }
            std::vector<char> bytes(data.ConsumeIntegralInRange<size_t>(0, 200));
            const bool        null = rarely(data);
            checked("detokenize", lucebox_detokenize(model, null ? nullptr : tokens.data(), tokens.size(), data.ConsumeBool(),
                                                     rarely(data) ? nullptr : bytes.data(), bytes.size(), out_n));
            break;
        }
        case 5: lucebox_token_is_eog(model, (int32_t) odd(data)); break;
        default: {
            const std::string request = changed(data, data.PickValueInArray(REQUESTS));
            const char *      json    = rarely(data) ? text.random(data) : request.c_str();
            if (checked("chat_render", lucebox_chat_render(model, json, rarely(data) ? nullptr : &out)) == LUCEBOX_OK) {
                w.render = out;
            }
        }
    }
    lucebox_string_free(out);
}

void call_parse(fuzzed & data, texts & text, world & w) {
    char *            out    = nullptr;
    const std::string render = changed(data, w.render);
    checked("chat_parse", lucebox_chat_parse(rarely(data) ? nullptr : render.c_str(), text.random(data, 300),
                                             data.ConsumeBool(), rarely(data) ? nullptr : &out));
    lucebox_string_free(out);
}

lucebox_sampler * open_sampler(fuzzed & data, texts & text, world & w) {
    lucebox_sampler_params p;
    lucebox_sampler_params_init(&p);
    lucebox_logit_bias biases[2] = { { odd_token(data, w.n_vocab), odd_float(data) }, { 0, -1e30f } };
    for (int n = data.ConsumeIntegralInRange<int>(0, 4); n > 0; --n) {
        int32_t * const integers[] = { &p.n_prev, &p.min_keep, &p.top_k, &p.penalty_last_n, &p.dry_allowed_length,
                                       &p.dry_penalty_last_n, &p.mirostat, &p.reasoning_budget_tokens };
        float * const   reals[]    = { &p.top_p, &p.min_p, &p.xtc_probability, &p.xtc_threshold, &p.typical_p, &p.temperature,
                                       &p.dynatemp_range, &p.dynatemp_exponent, &p.penalty_repeat, &p.penalty_freq,
                                       &p.penalty_present, &p.dry_multiplier, &p.dry_base, &p.adaptive_target,
                                       &p.adaptive_decay, &p.mirostat_tau, &p.mirostat_eta, &p.top_n_sigma };
        *data.PickValueInArray(integers) = (int32_t) odd(data);
        *data.PickValueInArray(reals)    = odd_float(data);
    }
    switch (data.ConsumeIntegralInRange<int>(0, 9)) {
        case 0: p.samplers              = text.one_of(data, SAMPLERS); break;
        case 1: p.dry_sequence_breakers = text.one_of(data, BREAKERS); break;
        case 2: p.grammar               = text.keep(changed(data, data.PickValueInArray(GRAMMARS))); break;
        case 3: p.chat_json             = text.keep(changed(data, w.render)); break;
        case 4:
            p.n_logit_bias = data.ConsumeIntegralInRange<size_t>(0, 2);
            p.logit_bias   = rarely(data) ? nullptr : biases;
            break;
        case 5: p.ignore_eos = true; break;
        case 6: p.struct_size = data.ConsumeIntegralInRange<size_t>(0, sizeof(p)); break;
        default: break;
    }
    lucebox_sampler * sampler = nullptr;
    checked("sampler_open", lucebox_sampler_open(rarely(data) ? nullptr : w.model, rarely(data) ? nullptr : &p,
                                                 rarely(data) ? nullptr : &sampler));
    if (data.ConsumeBool()) {
        char * out = nullptr;
        checked("sampler_describe", lucebox_sampler_describe(sampler, rarely(data) ? nullptr : &out));
        lucebox_string_free(out);
    }
    return sampler;
}

void call_open_session(fuzzed & data, texts & text, world & w) {
    lucebox_session_params p;
    lucebox_session_params_init(&p);
    p.n_ctx        = (uint32_t) odd(data);
    p.n_seq        = (uint32_t) (rarely(data) ? odd(data) : 1);
    p.n_ubatch     = (uint32_t) (rarely(data) ? odd(data) : 32);
    p.n_threads    = (int32_t) (rarely(data) ? -1 : 1);
    p.max_width    = (int32_t) odd(data);
    p.flash_attn   = data.ConsumeIntegralInRange<int32_t>(-2, 2);
    p.cache_type_k = text.one_of(data, TYPES);
    p.cache_type_v = text.one_of(data, TYPES);
    if (rarely(data)) {
        p.struct_size = data.ConsumeIntegralInRange<size_t>(0, sizeof(p));
    }
    lucebox_session * session = nullptr;
    checked("session_open", lucebox_session_open(rarely(data) ? nullptr : w.model, rarely(data) ? nullptr : &p,
                                                 rarely(data) ? nullptr : &session));
    lucebox_session_close(session);
}

int32_t odd_seq(fuzzed & data) {
    return rarely(data) ? (int32_t) odd(data) : data.ConsumeIntegralInRange<int32_t>(0, (int32_t) N_SEQ - 1);
}

void call_session(fuzzed & data, texts & text, world & w) {
    lucebox_session * session = rarely(data) ? nullptr : data.ConsumeBool() ? w.session : w.plain;
    const int32_t     seq     = odd_seq(data);
    switch (data.ConsumeIntegralInRange<int>(0, 14)) {
        case 0:
        case 1:
        case 2: {
            checked("clear", lucebox_session_clear(session, seq));
            std::vector<int32_t> tokens(data.ConsumeIntegralInRange<size_t>(0, N_CTX + 2));
            const int32_t        one = odd_token(data, w.n_vocab);
            std::fill(tokens.begin(), tokens.end(), one);
            int        left  = data.ConsumeIntegralInRange<int>(1, 20);
            int32_t    out[2] = {};
            const bool null   = rarely(data);
            checked("prefill", lucebox_session_prefill(session, seq, null ? nullptr : tokens.data(), tokens.size(),
                                                       rarely(data) ? nullptr : open_sampler(data, text, w), data.ConsumeBool(),
                                                       count_down, &left, rarely(data) ? nullptr : &out[0], &out[1]));
            break;
        }
        case 3:
        case 4:
        case 5:
        case 6: {
            lucebox_cycle_request requests[N_SEQ];
            lucebox_cycle_result  results[N_SEQ];
            lucebox_cycle_stats   stats = {};
            stats.struct_size           = rarely(data) ? 0 : sizeof(stats);
            for (auto & request : requests) {
                request.width      = rarely(data) ? (int32_t) odd(data) : data.ConsumeIntegralInRange<int32_t>(0, LUCEBOX_MAX_WIDTH);
                request.max_tokens = rarely(data) ? (int32_t) odd(data) : data.ConsumeIntegralInRange<int32_t>(1, 10);
            }
            const lucebox_status status = checked("cycle", lucebox_session_cycle(session, rarely(data) ? nullptr : requests,
                                                                                 results, rarely(data) ? nullptr : &stats));
            for (uint32_t i = 0; status == LUCEBOX_OK && i < N_SEQ; ++i) {
                if (results[i].n_tokens < 0 || results[i].n_tokens > LUCEBOX_MAX_WIDTH ||
                    results[i].n_accepted > results[i].n_verified || results[i].n_verified > results[i].n_drafted ||
                    lucebox_session_n_past(session, (int32_t) i) > N_CTX) {
                    stop("cycle", "impossible result");
                }
            }
            break;
        }
        case 7: {
            int32_t tokens[LUCEBOX_MAX_DRAFT];
            float   probs[LUCEBOX_MAX_DRAFT];
            checked("draft", lucebox_session_draft(session, seq, (int32_t) odd(data), rarely(data) ? nullptr : tokens, probs));
            break;
        }
        case 8: checked("force", lucebox_session_force(session, seq, odd_token(data, w.n_vocab))); break;
        case 9: {
            const float * logits = lucebox_session_logits(session, seq, (int32_t) odd(data));
            if (logits != nullptr && logits[w.n_vocab - 1] == logits[0]) {
                lucebox_session_n_past(session, seq);
            }
            break;
        }
        case 10: {
            size_t size = 0;
            if (checked("state_save", lucebox_session_state_save(session, seq, nullptr, 0, rarely(data) ? nullptr : &size)) ==
                LUCEBOX_OK) {
                std::string bytes(rarely(data) ? size / 2 : size, '\0');
                checked("state_save", lucebox_session_state_save(session, seq, &bytes[0], bytes.size(), &size));
                w.saved = bytes;
            }
            break;
        }
        case 11: {
            const std::string bytes = changed(data, w.saved);
            checked("state_load", lucebox_session_state_load(session, seq, rarely(data) ? nullptr : bytes.data(), bytes.size(),
                                                             rarely(data) ? nullptr : open_sampler(data, text, w)));
            break;
        }
        case 12: {
            int32_t          n_more[N_SEQ];
            lucebox_proposal out[N_SEQ];
            for (int32_t & n : n_more) {
                n = rarely(data) ? (int32_t) odd(data) : data.ConsumeIntegralInRange<int32_t>(0, LUCEBOX_MAX_DRAFT);
            }
            int64_t             draft_us = 0;
            const lucebox_status status  = checked("propose", lucebox_session_propose(session, rarely(data) ? nullptr : n_more,
                                                                                     rarely(data) ? nullptr : out, &draft_us));
            for (uint32_t i = 0; status == LUCEBOX_OK && i < N_SEQ; ++i) {
                if (out[i].n_drafted < 0 || out[i].n_drafted > LUCEBOX_MAX_DRAFT) {
                    stop("propose", "impossible result");
                }
            }
            break;
        }
        case 13: lucebox_session_abort(session); break;
        default: {
            lucebox_session_abort_reset(session);
            lucebox_session_info info = {};
            info.struct_size          = data.ConsumeIntegralInRange<size_t>(0, sizeof(info));
            checked("session_info", lucebox_session_get_info(session, rarely(data) ? nullptr : &info));
        }
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t * bytes, size_t n_bytes) {
    world & w = the_world();
    // each input begins with the same state
    for (lucebox_session * session : { w.session, w.plain }) {
        lucebox_session_abort_reset(session);
        for (uint32_t seq = 0; seq < N_SEQ; ++seq) {
            must("clear", lucebox_session_clear(session, (int32_t) seq));
        }
    }
    w.saved.clear();
    fuzzed data(bytes, n_bytes);
    texts  text;
    for (int n = 0; n < MAX_CALLS && data.remaining_bytes() > 0; ++n) {
        switch (data.ConsumeIntegralInRange<int>(0, 31)) {
            case 0:  call_open_session(data, text, w); break;
            case 1:  call_open_model(data, text); break;
            case 2:
            case 3:  call_library(data, text); break;
            case 4:
            case 5:
            case 6:
            case 7:
            case 8:
            case 9:  call_model(data, text, w); break;
            case 10:
            case 11: call_parse(data, text, w); break;
            case 12:
            case 13: lucebox_sampler_close(open_sampler(data, text, w)); break;
            default: call_session(data, text, w);
        }
    }
    return 0;
}
