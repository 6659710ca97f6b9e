/*
 * lucebox.h - the C API that pylucebox binds.
 *
 * Rules that hold for every function here:
 *  - Handles are opaque. A handle may be closed once; closing NULL is a no-op.
 *  - Structs are plain data and begin with `struct_size`, which the caller sets to sizeof() of the struct
 *    it was compiled with. The `*_init` functions set it and fill in the defaults.
 *  - Functions that can fail return a lucebox_status. The text of the last failure on the calling thread is
 *    lucebox_last_error(). No C++ exception leaves the library.
 *  - Strings are UTF-8. Strings handed out through `char **` belong to the caller: lucebox_string_free().
 *  - A model may be shared by threads. A session serves one thread at a time, except lucebox_session_abort().
 */
#ifndef LUCEBOX_H
#define LUCEBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#    if defined(LUCEBOX_BUILD)
#        define LUCEBOX_API __declspec(dllexport)
#    else
#        define LUCEBOX_API __declspec(dllimport)
#    endif
#else
#    define LUCEBOX_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Widest verify step: the trunk's last token and up to seven drafts. */
#define LUCEBOX_MAX_WIDTH 8
#define LUCEBOX_MAX_DRAFT 7

typedef enum lucebox_status {
    LUCEBOX_OK               = 0,
    LUCEBOX_ERR_ARGUMENT     = 1,  /* a parameter is out of range or missing                     */
    LUCEBOX_ERR_IO           = 2,  /* a file is missing or cannot be read                        */
    LUCEBOX_ERR_FORMAT       = 3,  /* a file was read but is not a model this build can run      */
    LUCEBOX_ERR_MISMATCH     = 4,  /* the MTP file does not belong to the model                  */
    LUCEBOX_ERR_MEMORY       = 5,  /* an allocation failed                                       */
    LUCEBOX_ERR_BACKEND      = 6,  /* the wanted device is not there                             */
    LUCEBOX_ERR_CONTEXT_FULL = 7,  /* the tokens do not fit into n_ctx; nothing was changed      */
    LUCEBOX_ERR_CANCELLED    = 8,  /* a callback or lucebox_session_abort() asked to stop        */
    LUCEBOX_ERR_ROLLBACK     = 9,  /* rejected drafts could not be taken back; clear the session */
    LUCEBOX_ERR_DECODE       = 10, /* the model could not be run on a batch                      */
    LUCEBOX_ERR_STATE        = 11, /* the call is not allowed in the sequence's present state    */
    LUCEBOX_ERR_INTERNAL     = 12, /* anything else                                              */
    LUCEBOX_ERR_SAMPLING     = 13  /* no token could be chosen: a grammar that allows none       */
} lucebox_status;

typedef struct lucebox_model   lucebox_model;
typedef struct lucebox_sampler lucebox_sampler;
typedef struct lucebox_session lucebox_session;

/* level: 1 debug, 2 info, 3 warning, 4 error. Text has no trailing newline. May come from any thread. */
typedef void (*lucebox_log_callback)(int32_t level, const char * text, void * user_data);

/* fraction: 0..1. Return false to stop. */
typedef bool (*lucebox_progress_callback)(float fraction, void * user_data);

/* ---- library ------------------------------------------------------------------------------------------ */

LUCEBOX_API const char * lucebox_version(void);        /* package version compiled in            */
LUCEBOX_API const char * lucebox_upstream_build(void); /* llama.cpp build, for example "b11434"  */
LUCEBOX_API const char * lucebox_series_hash(void);    /* hash of the patch series compiled in   */
LUCEBOX_API const char * lucebox_last_error(void);     /* never NULL; valid until the next call  */
LUCEBOX_API void         lucebox_string_free(char * text);

/* NULL restores the default, which drops everything below warnings and prints those to stderr. */
LUCEBOX_API void lucebox_log_set(lucebox_log_callback callback, void * user_data);

/* Load the dynamic back ends that lie in `directory`. Built-in back ends need no call. Idempotent. */
LUCEBOX_API lucebox_status lucebox_backends_load(const char * directory);

/* JSON: {"compiler", "build_type", "cmake_args", "features": {...}, "devices": [{"name", "description",
 * "kind", "backend", "memory_free_bytes", "memory_total_bytes"}], "backends": [...]} */
LUCEBOX_API lucebox_status lucebox_system_info(char ** out_json);

/* Quantise rows of f32 to a ggml type named as ggml names it ("q8_0", "q4_K", "bf16", ...).
 * `n_per_row` must be a multiple of the type's block. `*out_size` receives the bytes needed or written;
 * with out == NULL only the size is computed. */
LUCEBOX_API lucebox_status lucebox_quantize(const char * type_name, const float * rows, int64_t n_rows,
                                            int64_t n_per_row, void * out, size_t out_capacity, size_t * out_size);

/* ---- model -------------------------------------------------------------------------------------------- */

enum lucebox_mtp_source {
    LUCEBOX_MTP_NONE    = 0,
    LUCEBOX_MTP_IN_FILE = 1,
    LUCEBOX_MTP_SIDECAR = 2
};

/* How the norm of the hidden state that enters the MTP block is read. */
enum lucebox_hidden_norm {
    LUCEBOX_HIDDEN_NORM_FILE       = 0, /* what the file says; full width when it says nothing */
    LUCEBOX_HIDDEN_NORM_FULL       = 1, /* one RMS over all hyper-connection streams            */
    LUCEBOX_HIDDEN_NORM_PER_STREAM = 2  /* one RMS per stream                                   */
};

typedef struct lucebox_model_params {
    size_t       struct_size;
    const char * path;
    const char * mtp_path;     /* MTP file, or NULL                                                        */
    bool         mtp_in_file;  /* use the MTP block inside `path`; mtp_path must be NULL                   */
    int32_t      hidden_norm;  /* enum lucebox_hidden_norm                                                 */
    int32_t      n_gpu_layers; /* layers on the device; negative: all                                      */
    const char * device;       /* NULL or "auto"; "cpu"; else a device name from lucebox_system_info()     */
    bool         use_mmap;
    bool         repack;       /* copy CPU weights into the layout their kernels like best                 */
    bool         check_tensors;
    lucebox_progress_callback progress; /* may be NULL */
    void *                    progress_user_data;
    const int32_t * draft_ids;   /* tokens that can be drafted, ascending: the drafts then come from these rows of  */
    size_t          n_draft_ids; /* the LM head only, which are copied. 0: all, or those that the MTP file's head has */
} lucebox_model_params;

typedef struct lucebox_model_info {
    size_t   struct_size;
    int32_t  n_vocab;
    int32_t  n_ctx_train;
    int32_t  n_embd;
    int32_t  n_embd_out;    /* width of the state handed to the MTP block, floats */
    int32_t  n_layer;
    int32_t  n_layer_nextn; /* MTP blocks in use: 0 or 1                         */
    int32_t  mtp_source;    /* enum lucebox_mtp_source                           */
    int32_t  hidden_norm;   /* in force: FULL or PER_STREAM                      */
    bool     mtp_borrows_embedding;
    bool     mtp_borrows_head;
    uint64_t n_params;
    uint64_t size_bytes;
    uint64_t mtp_size_bytes;
    int32_t  n_draft_vocab;    /* tokens that can be drafted                                    */
    uint64_t mtp_block_bytes;  /* the block alone, without embeddings and LM head               */
    uint64_t draft_rows_bytes; /* rows of LM head and embeddings that were copied for the drafts */
} lucebox_model_info;

LUCEBOX_API void           lucebox_model_params_init(lucebox_model_params * params);
LUCEBOX_API lucebox_status lucebox_model_open(const lucebox_model_params * params, lucebox_model ** out);
LUCEBOX_API void           lucebox_model_close(lucebox_model * model);
LUCEBOX_API lucebox_status lucebox_model_get_info(const lucebox_model * model, lucebox_model_info * info);

/* One metadata value as text. LUCEBOX_ERR_ARGUMENT when the key is absent. */
LUCEBOX_API lucebox_status lucebox_model_meta(const lucebox_model * model, const char * key, char ** out_text);

/* `*out_n` receives the number of tokens; when it exceeds `capacity` nothing is written and the status is
 * LUCEBOX_ERR_ARGUMENT. Text with a NUL byte is allowed. */
LUCEBOX_API lucebox_status lucebox_tokenize(const lucebox_model * model, const char * text, size_t text_bytes,
                                            bool add_special, bool parse_special, int32_t * tokens, size_t capacity,
                                            size_t * out_n);

/* Bytes of one token; they need not be whole UTF-8 characters. Same size convention as lucebox_tokenize(). */
LUCEBOX_API lucebox_status lucebox_token_bytes(const lucebox_model * model, int32_t token, bool special,
                                               char * bytes, size_t capacity, size_t * out_bytes);

/* Text of a run of tokens as the tokenizer joins them. */
LUCEBOX_API lucebox_status lucebox_detokenize(const lucebox_model * model, const int32_t * tokens, size_t n_tokens,
                                              bool special, char * text, size_t capacity, size_t * out_bytes);

LUCEBOX_API bool lucebox_token_is_eog(const lucebox_model * model, int32_t token);

/* ---- chat --------------------------------------------------------------------------------------------- */

/* request: {"messages": [...OpenAI...], "tools", "tool_choice", "parallel_tool_calls", "json_schema" (text),
 * "grammar", "add_generation_prompt", "enable_thinking", "reasoning_format" ("none"|"auto"|"deepseek"...),
 * "chat_template_kwargs"}.
 * result: {"prompt", "additional_stops", "supports_thinking", "format", ...}; pass it whole to
 * lucebox_sampler_params.chat_json and to lucebox_chat_parse(). */
LUCEBOX_API lucebox_status lucebox_chat_render(const lucebox_model * model, const char * request_json,
                                               char ** out_json);

/* result: an OpenAI assistant message {"role", "content", "reasoning_content", "tool_calls"}. */
LUCEBOX_API lucebox_status lucebox_chat_parse(const char * render_json, const char * text, bool is_partial,
                                              char ** out_json);

LUCEBOX_API lucebox_status lucebox_grammar_from_schema(const char * json_schema, char ** out_gbnf);

/* ---- sampler ------------------------------------------------------------------------------------------ */

/* Where the random numbers of the draws come from. */
enum lucebox_rng {
    LUCEBOX_RNG_AUTO    = 0, /* GUMBEL where the chain and this build allow it                               */
    LUCEBOX_RNG_MT19937 = 1, /* upstream's: one stream for each request, one number for each token            */
    LUCEBOX_RNG_GUMBEL  = 2  /* noise that is a function of seed, position and token: drafts can foresee draws */
};

typedef struct lucebox_logit_bias {
    int32_t token;
    float   bias;
} lucebox_logit_bias;

/* Every setting of upstream's sampler chain under upstream's names. */
typedef struct lucebox_sampler_params {
    size_t       struct_size;
    uint32_t     seed;
    int32_t      n_prev;
    int32_t      min_keep;
    int32_t      top_k;
    float        top_p;
    float        min_p;
    float        xtc_probability;
    float        xtc_threshold;
    float        typical_p;
    float        temperature;
    float        dynatemp_range;
    float        dynatemp_exponent;
    int32_t      penalty_last_n;
    float        penalty_repeat;
    float        penalty_freq;
    float        penalty_present;
    float        dry_multiplier;
    float        dry_base;
    int32_t      dry_allowed_length;
    int32_t      dry_penalty_last_n;
    float        adaptive_target;
    float        adaptive_decay;
    int32_t      mirostat;
    float        mirostat_tau;
    float        mirostat_eta;
    float        top_n_sigma;
    bool         ignore_eos;
    const char * samplers;              /* names joined by ';', NULL for upstream's order */
    const char * dry_sequence_breakers; /* JSON array of strings, NULL for upstream's     */
    const char * grammar;               /* GBNF, or NULL                                  */
    const char * chat_json;             /* result of lucebox_chat_render(), or NULL       */
    int32_t      reasoning_budget_tokens; /* -1: no limit; used with chat_json            */
    const lucebox_logit_bias * logit_bias;
    size_t                     n_logit_bias;
    int32_t sampler_rng; /* enum lucebox_rng; mirostat and adaptive-p draw from streams of their own: they take no GUMBEL */
} lucebox_sampler_params;

LUCEBOX_API void           lucebox_sampler_params_init(lucebox_sampler_params * params);
LUCEBOX_API lucebox_status lucebox_sampler_open(const lucebox_model * model, const lucebox_sampler_params * params,
                                                lucebox_sampler ** out);
LUCEBOX_API void           lucebox_sampler_close(lucebox_sampler * sampler);
/* The chain as upstream prints it. */
LUCEBOX_API lucebox_status lucebox_sampler_describe(const lucebox_sampler * sampler, char ** out_text);
/* enum lucebox_rng in force, never AUTO. */
LUCEBOX_API int32_t lucebox_sampler_rng(const lucebox_sampler * sampler);
/* Draw `n` tokens one after the other, each from these logits (n_vocab floats), without the grammar. If `whole` is not 0
 * the chain is given all of them, as upstream does, and not only those that it has to see. For tests. */
LUCEBOX_API lucebox_status lucebox_sampler_draw(lucebox_sampler * sampler, const float * logits, size_t n_logits,
                                                int32_t whole, size_t n, int32_t * out_tokens);
/* The noise of LUCEBOX_RNG_GUMBEL for `n` tokens from 0 on. `draw` is 1 for the draw that follows one which a grammar
 * refused, else 0. For tests. Not a number where the build has no such sampler. */
LUCEBOX_API void lucebox_gumbel_noise(uint32_t seed, uint32_t position, uint32_t draw, size_t n, double * out);

/* ---- session ------------------------------------------------------------------------------------------ */

typedef struct lucebox_session_params {
    size_t       struct_size;
    uint32_t     n_ctx;           /* tokens per sequence; 0: the model's training context               */
    uint32_t     n_seq;           /* sequences that may decode together, 1..8                           */
    uint32_t     n_ubatch;        /* prompt tokens computed at once, 32..8192                         */
    int32_t      n_threads;       /* threads of a decode step                                           */
    int32_t      n_threads_batch; /* threads of prefill                                                 */
    int32_t      max_width;       /* 1..8; 1 leaves MTP out: no draft context, no snapshots             */
    int32_t      flash_attn;      /* -1 automatic, 0 off, 1 on                                          */
    const char * cache_type_k;    /* ggml type name, "f16" by default                                   */
    const char * cache_type_v;
    bool         mtp_kv_in_trunk; /* the trunk's graph writes the K/V of the MTP block, where it can    */
    bool         draft_chain;     /* make all drafts of a cycle in one launch, where that can be had      */
    bool         attend_selected; /* attention of few rows reads selected cells without a mask, where it can */
    int32_t      n_kept_graphs;   /* graphs of few rows to keep, for the trunk and for the MTP block, 0..64 */
    bool         even_drafts;     /* sequences of a cycle verify the same number of drafts: one run of the model */
    bool         coupled_drafts;  /* drafts of sequences with LUCEBOX_RNG_GUMBEL share the noise of the sampler */
} lucebox_session_params;

typedef struct lucebox_session_info {
    size_t   struct_size;
    uint32_t n_ctx;        /* tokens per sequence in force */
    uint32_t n_seq;
    uint32_t n_ubatch;
    int32_t  max_width;    /* in force */
    uint32_t n_rs_seq;     /* recurrent-state snapshots per sequence */
    uint64_t context_bytes;      /* caches of the trunk, recurrent snapshots included */
    uint64_t compute_bytes;
    uint64_t mtp_context_bytes;
    uint64_t mtp_compute_bytes;
    bool     mtp_kv_in_trunk; /* in force: prompts take no pass of the MTP block */
    bool     draft_chain;  /* all drafts of a cycle are made in one launch; if not, lucebox_session_why_stepwise() */
    bool     attend_selected;    /* in force */
    uint64_t kept_graphs_bytes;  /* host memory of the most graphs that may be kept; each takes it at its first use */
} lucebox_session_info;

enum lucebox_finish {
    LUCEBOX_FINISH_NONE    = 0,
    LUCEBOX_FINISH_EOG     = 1, /* the last token ends the generation                */
    LUCEBOX_FINISH_LIMIT   = 2, /* the request's max_tokens is reached               */
    LUCEBOX_FINISH_CONTEXT = 3, /* no cell is left for the next token                */
    LUCEBOX_FINISH_FAILED  = 4  /* no next token could be chosen: clear the sequence */
};

/* The drafts of a sequence that wait for its next cycle, first to last. */
typedef struct lucebox_proposal {
    int32_t n_drafted;
    int32_t tokens[LUCEBOX_MAX_DRAFT];
    float   probs[LUCEBOX_MAX_DRAFT]; /* top-1 probability over the tokens that can be drafted; of drafts that share the
                                       * sampler's noise, how likely their lead over the second makes it that they hold */
} lucebox_proposal;

/* What one sequence wants of a cycle. */
typedef struct lucebox_cycle_request {
    int32_t width;      /* 0: leave this sequence out; 1: verify no drafts; 2..max_width: verify width - 1 drafts.
                         * With others in the cycle it may get fewer, or more where drafts are even. */
    int32_t max_tokens; /* stop after this many new tokens; at least 1                                            */
    int32_t logprobs;   /* 1: tell how probable the new tokens were; 0: do not                                    */
} lucebox_cycle_request;

/* What one sequence got. Token i was sampled from row i of the verify batch. */
typedef struct lucebox_cycle_result {
    int32_t n_tokens;   /* new tokens, 1..width (or 0, if it failed); the last one is not in the context yet */
    int32_t n_drafted;  /* all drafts of the cycle; those behind the first n_verified were not verified      */
    int32_t n_verified; /* the width the sequence got, less one                                              */
    int32_t n_accepted; /* verified drafts that equal the token sampled at their place                       */
    int32_t finish;     /* enum lucebox_finish */
    int32_t tokens[LUCEBOX_MAX_WIDTH];
    int32_t draft_tokens[LUCEBOX_MAX_DRAFT];
    float   draft_probs[LUCEBOX_MAX_DRAFT]; /* as in lucebox_proposal */
    float   logprobs[LUCEBOX_MAX_WIDTH]; /* of each new token, by the model alone: before temperature, filters and all
                                          * that a sampler does. NaN unless asked for, and without logits on the host */
} lucebox_cycle_result;

/* Times of one cycle, over all its sequences. What concerns drafts includes the lucebox_session_propose() calls since
 * the last cycle. */
typedef struct lucebox_cycle_stats {
    size_t  struct_size;
    int64_t draft_us;
    int64_t verify_us;
    int64_t sample_us;
    int64_t rollback_us;
    int32_t n_rows;            /* rows of the verify batch                          */
    int32_t n_draft_rows;      /* rows run through the MTP block, catch-up included */
    int32_t n_draft_steps;     /* launches of the MTP block                         */
    bool    graph_built;       /* a graph of the verify step was built, not run again */
    bool    draft_graph_built; /* the same of the MTP block                           */
    int32_t n_draft_waits;     /* of the host for the device while drafts were made */
    int32_t n_passes;          /* runs of the whole model: one for each part of the batch with equal widths */
} lucebox_cycle_stats;

LUCEBOX_API void           lucebox_session_params_init(lucebox_session_params * params);
LUCEBOX_API lucebox_status lucebox_session_open(lucebox_model * model, const lucebox_session_params * params,
                                                lucebox_session ** out);
LUCEBOX_API void           lucebox_session_close(lucebox_session * session);
LUCEBOX_API lucebox_status lucebox_session_get_info(const lucebox_session * session, lucebox_session_info * info);

/* Why the MTP block reads prompts in a pass of its own; empty if it does not, or there is none. */
LUCEBOX_API const char * lucebox_session_own_pass_reason(const lucebox_session * session);
/* Why each draft has a launch of its own; empty where it has not. Valid as long as the session. */
LUCEBOX_API const char * lucebox_session_why_stepwise(const lucebox_session * session);

/* Forget a sequence. Always allowed; also takes a sequence out of the failed state. */
LUCEBOX_API lucebox_status lucebox_session_clear(lucebox_session * session, int32_t seq);

/* Append a prompt to a cleared sequence and sample its first token.
 * The session takes over `sampler`, also on failure. `use_mtp` false keeps the sequence without drafts for good,
 * which spares the MTP pass over the prompt. `progress` may be NULL; it is called after every n_ubatch tokens.
 * Writes the token and its enum lucebox_finish. On failure the sequence is cleared. */
LUCEBOX_API lucebox_status lucebox_session_prefill(lucebox_session * session, int32_t seq, const int32_t * tokens,
                                                   size_t n_tokens, lucebox_sampler * sampler, bool use_mtp,
                                                   lucebox_progress_callback progress, void * user_data,
                                                   int32_t * out_token, int32_t * out_finish);

/* Make n_more[i] further drafts, 0..LUCEBOX_MAX_DRAFT, behind those of sequence i that wait for its next cycle.
 * `n_more` and `out` have n_seq entries; every entry of `out` receives all drafts that wait. There are never more than
 * LUCEBOX_MAX_DRAFT, nor more than tokens that the context can still take, and none in a sequence prefilled without
 * MTP: what is asked beyond that is left out. What waits changes the speed of later cycles, never their tokens. It is
 * dropped by lucebox_session_clear(), _force(), _draft(), _state_save() and _state_load() of the sequence.
 * `out_draft_us`, which may be NULL, receives the time. On failure the sequences that were to draft must be cleared. */
LUCEBOX_API lucebox_status lucebox_session_propose(lucebox_session * session, const int32_t * n_more,
                                                   lucebox_proposal * out, int64_t * out_draft_us);

/* One cycle: draft, verify, sample row by row while the drafts hold, roll back.
 * `requests` and `results` have n_seq entries. A width is cut to max_tokens, to the cells left, and, widest first,
 * until all widths together are at most LUCEBOX_MAX_WIDTH: up to that many rows the back ends give each row the
 * bits it has alone. The drafts that wait are verified first to last and the missing ones made; those that wait beyond
 * the width are reported, but neither verified nor kept. On failure the sequences that took part must be cleared. A
 * sequence whose sampler fails ends with LUCEBOX_FINISH_FAILED and costs the others nothing. */
LUCEBOX_API lucebox_status lucebox_session_cycle(lucebox_session * session, const lucebox_cycle_request * requests,
                                                 lucebox_cycle_result * results, lucebox_cycle_stats * stats);

/* Why the sequence ended with LUCEBOX_FINISH_FAILED; empty if it did not. Valid until the sequence is cleared. */
LUCEBOX_API const char * lucebox_session_failure(const lucebox_session * session, int32_t seq);

/* Draft `n` tokens after the sequence's last token and forget them again, as well as what was proposed. For traces and
 * tests. */
LUCEBOX_API lucebox_status lucebox_session_draft(lucebox_session * session, int32_t seq, int32_t n, int32_t * tokens,
                                                 float * probs);

/* Logits of the draft after the sequence's last token, n_vocab floats; -inf for tokens that cannot be drafted. Forgets
 * what was proposed. For tests and measurements. */
LUCEBOX_API lucebox_status lucebox_session_draft_logits(lucebox_session * session, int32_t seq, float * logits);

/* Replace the last sampled token, which is not in the context yet. For teacher forcing. */
LUCEBOX_API lucebox_status lucebox_session_force(lucebox_session * session, int32_t seq, int32_t token);

/* Logits (n_vocab floats) that token `row` of the last prefill (row 0) or cycle of `seq` was sampled from.
 * Valid until the next prefill or cycle of the session, NULL when there is none. */
LUCEBOX_API const float * lucebox_session_logits(const lucebox_session * session, int32_t seq, int32_t row);

/* Tokens of the sequence that are in the context. */
LUCEBOX_API int32_t lucebox_session_n_past(const lucebox_session * session, int32_t seq);

/* All state of a sequence between cycles: caches, recurrent states, MTP state, last token. Not the sampler, and no
 * drafts: those that wait are dropped. */
LUCEBOX_API lucebox_status lucebox_session_state_save(lucebox_session * session, int32_t seq, void * bytes,
                                                      size_t capacity, size_t * out_bytes);
/* The sequence continues from the saved state with `sampler`, which the session takes over. */
LUCEBOX_API lucebox_status lucebox_session_state_load(lucebox_session * session, int32_t seq, const void * bytes,
                                                      size_t n_bytes, lucebox_sampler * sampler);

/* From any thread: make the running or next prefill, proposal or cycle return LUCEBOX_ERR_CANCELLED. Holds until
 * reset. */
LUCEBOX_API void lucebox_session_abort(lucebox_session * session);
LUCEBOX_API void lucebox_session_abort_reset(lucebox_session * session);

#ifdef __cplusplus
}
#endif

#endif
