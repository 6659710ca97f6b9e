// The C functions of liblucebox-server: upstream's server, and the mailbox through which width policies answer it.
// pylucebox/serve/_native.py declares them for ctypes; keep the two alike.
#pragma once

#include <stdint.h>

#if defined(_WIN32)
#    define LUCEBOX_SERVER_API __declspec(dllexport)
#else
#    define LUCEBOX_SERVER_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Runs llama-server with the arguments of its command line until it is told to stop, and returns its exit code. It sets
// up the process's signals and log, and what it asserts ends the process: at most once in a process made for it.
LUCEBOX_SERVER_API int lucebox_server_main(int argc, char ** argv);

// Accept on these sockets, which listen already, one for each address in order. `before_accept` is called before the
// first accept. Before lucebox_server_main.
LUCEBOX_SERVER_API void lucebox_server_use_sockets(const int32_t * sockets, int32_t n, void (*before_accept)(void));

// Whether llama-server's web page is built in.
LUCEBOX_SERVER_API int32_t lucebox_server_has_page(void);

// From any thread, when the model is loaded: refuse new requests, wait until those that run are answered, and end the
// server. When `timeout_ms` are over and some are not answered, the process ends at once and they are cut off: the server
// would wait for as long as their clients do.
LUCEBOX_SERVER_API void lucebox_server_drain(int32_t timeout_ms);

// ---- the drafter -------------------------------------------------------------------------------------------------

// Where a table lies in a file; a NULL path: nowhere.
typedef struct lucebox_server_table {
    const char * path;
    uint64_t     offset;
    uint64_t     n_bytes;
    int32_t      type; // enum ggml_type
} lucebox_server_table;

typedef struct lucebox_server_drafter_params {
    const int32_t *      draft_ids;     // tokens that can be drafted, ascending
    int32_t              n_draft_ids;   // 0: all that the MTP block's LM head has
    int32_t              covers_part;   // not 0: that head has rows for some tokens only
    lucebox_server_table head;          // LM head and embeddings that the block drafts with
    lucebox_server_table embd;
    int32_t              draft_chain;   // not 0: make the drafts of a pass in one launch, where that can be had
    int32_t              n_kept_graphs; // graphs of few rows to keep, of the model and of the MTP block
    int32_t              measure;       // not 0: time passes of all widths when the model is loaded
} lucebox_server_drafter_params;

// Costs of passes in microseconds; an n_past of 0: not measured.
typedef struct lucebox_server_costs {
    double  verify_us[8]; // of so many rows in all; 0 where the slots cannot have equally many
    double  draft_us[7];  // of chains of so many drafts for each slot; 0 where a pass has no place for these
    double  reject_us;
    double  mtp_prefill_us_per_token;
    int32_t n_past;
    int32_t on_gpu; // not 0: a GPU took these times
} lucebox_server_costs;

// Before lucebox_server_main: make drafts with the engine's drafter, where it can; otherwise upstream's makes them.
LUCEBOX_SERVER_API void lucebox_server_use_drafter(const lucebox_server_drafter_params * params);

// What passes of `n_active` slots were measured to take, from the event LOADED on.
LUCEBOX_SERVER_API void lucebox_server_get_costs(int32_t n_active, lucebox_server_costs * out);

// ---- the policy's mailbox ------------------------------------------------------------------------------------------

#define LUCEBOX_SERVER_MAX_SLOTS 8 // that take part in a pass with drafts: a pass has at most that many rows
#define LUCEBOX_SERVER_MAX_DRAFT 7

typedef struct lucebox_server_policy_params {
    const char * spec_json;    // SpecState as JSON: requested, effective, reason_code, reason
    const char * policy_name;  // for people; NULL: nobody calls lucebox_server_policy_next
    int32_t      verify_width; // 0: the policy decides; else the width of every pass
    int32_t      max_width;    // 1 to 8
    int32_t      require;      // not 0: without a drafter the server does not start
    int32_t      even_drafts;  // not 0: slots that run together draft the same number
    int64_t      limit_us;     // without an answer for so long there are no drafts
    int64_t      wait_us;      // of each pass may be waited for answers, or a 500th of its time if that is more
} lucebox_server_policy_params;

enum lucebox_server_event_kind {
    LUCEBOX_SERVER_CLOSED = 0, // the last one
    LUCEBOX_SERVER_LOADED = 1, // the model is there: n_slots, n_draft_max
    LUCEBOX_SERVER_BEGIN  = 2, // slots[0] begins a reply, n_past tokens long its prompt; answered with the next pass
    LUCEBOX_SERVER_REPORT = 3, // what the pass was; answered with the next pass
    LUCEBOX_SERVER_ASK    = 4, // the drafts of slots[0] so far; answered with the width, and the further drafts to make
    LUCEBOX_SERVER_WORTH  = 5, // slots[0] is to begin a reply, n_tokens of its prompt are to be processed: is that to have
                               // drafts? Comes before events that were posted earlier.
};

typedef struct lucebox_server_slot {
    int32_t slot;
    // the pass that was
    int32_t width;
    int32_t n_drafted;
    int32_t n_accepted;
    int32_t n_tokens;
    // what is known of the next one
    int32_t n_past;
    int32_t n_left; // tokens it may still produce, -1: no limit
    int32_t max_width; // 0: its request has decided on it, nobody plans
    // the answer: rows to verify, drafts to make, and whether to ask before they are verified
    int32_t next_width;
    int32_t next_n_draft;
    int32_t next_ask;
    int32_t refused; // not 0: drafts do not pay for the reply
    // the pass that was
    int32_t drafts[LUCEBOX_SERVER_MAX_DRAFT];
    float   probs[LUCEBOX_SERVER_MAX_DRAFT];
    int32_t tokens[LUCEBOX_SERVER_MAX_DRAFT + 1];
} lucebox_server_slot;

typedef struct lucebox_server_event {
    int64_t ticket; // counts the events
    int64_t draft_us;
    int64_t verify_us;
    int32_t kind;
    int32_t n_active; // slots that take part in the pass; for BEGIN with this one those whose replies have drafts
    int32_t n_rows;
    int32_t graph_built;
    int32_t with_prompt;
    int32_t n_draft_max;
    int32_t n_slots; // entries of `slots`; for LOADED the slots of the server
    lucebox_server_slot slots[LUCEBOX_SERVER_MAX_SLOTS];
} lucebox_server_event;

// Before lucebox_server_main, once.
LUCEBOX_SERVER_API void lucebox_server_policy_init(const lucebox_server_policy_params * params);

// Waits for the next event, on the policy's own thread.
LUCEBOX_SERVER_API void lucebox_server_policy_next(lucebox_server_event * out);

// The answer: the same event with what is asked for filled in.
LUCEBOX_SERVER_API void lucebox_server_policy_answer(const lucebox_server_event * event);

// While LOADED is dealt with: what is waited for may be asked on the thread that waits, by a call of `answer` with the event
// in `event`, which is answered in place; 0 when the policy was given up. The policy is asked by one thread at a time. For
// policies that are known not to hang, where nobody else holds Python's lock; a call that takes longer than the limit is
// the last one. Both live as long as the process.
LUCEBOX_SERVER_API void lucebox_server_policy_call(lucebox_server_event * event, int32_t (*answer)(void));

// The policy is given up; the server goes on without it.
LUCEBOX_SERVER_API void lucebox_server_policy_give_up(const char * reason);

#ifdef __cplusplus
}
#endif
