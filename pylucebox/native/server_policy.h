// The width policy's side of the server: fixed widths are decided here, others by a policy in Python.
#pragma once

#include "server.h"

#include "json.h"
#include "server-draft-policy.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace lucebox {

class build_watch;

// The slots' thread posts what a pass was, and the policy answers with what the next one shall be, in one of two ways.
//
// Any policy has a thread of its own, and answers while the server is at other work. If the answer is not there when the next
// pass begins, the last one holds. Waits are paid from an account, into which each pass pays a small part of its time. So neither an error of the policy
// nor one that never answers, even one that holds Python's lock, can stop generation: after a while without an answer there
// are no drafts, and after a long while it is given up. To wake a thread takes longer than to tell it something. Where passes
// are short and the policy wants no drafts, it is told of several at once.
//
// A policy that is known to answer is called on the slots' thread for what that waits for: nobody has to be woken.
class mailbox final : public server_draft_policy {
  public:
    mailbox();
    ~mailbox() override;

    void init(const lucebox_server_policy_params & params);

    // the policy's thread
    void next(lucebox_server_event & out);
    void answer(const lucebox_server_event & event);
    void give_up(const std::string & reason);
    void use_call(lucebox_server_event * event, int32_t (*call)());

    // Who makes the drafts for a context, for people; the model whose runs are counted, and whether a GPU runs it.
    void set_drafter(const llama_context * trunk, bool on_gpu, const common_json & description);

    // Tells the policy's thread that it is over; false if it does not take notice.
    bool close();

    bool         loaded(int32_t n_slots, int32_t n_draft_max) override;
    const char * begin(server_draft_reply & reply) override;
    void         plan(server_draft_pass & pass) override;
    int32_t      more(int32_t id_slot, const std::vector<float> & probs) override;
    void         trim(server_draft_pass & pass) override;
    void         report(const server_draft_pass & pass) override;
    std::string  state() override;
    std::string  metrics() override;

  private:
    struct slot_state {
        int32_t wanted   = 0; // width that the request wants, 0: none
        int32_t n_verify = 0; // drafts to verify in this pass
        int32_t widest   = 1; // possible in it
        bool    ask      = false;

        int64_t first  = 0; // events of this reply have this ticket or a later one
        int64_t posted = 0; // ticket of the last event
        int64_t known  = 0; // ticket of the event that was answered last
        int32_t next_width   = 1;
        int32_t next_n_draft = 0;
        bool    next_ask     = false;
        bool    used         = true; // a pass was planned with these

        // counted over the life of the server
        uint64_t n_pass_of_width[LUCEBOX_SERVER_MAX_DRAFT + 1]  = {};
        uint64_t n_pass_of_tokens[LUCEBOX_SERVER_MAX_DRAFT + 1] = {}; // passes by the tokens they gave, less one
    };

    bool asks_policy() const { return has_policy && failure.empty(); }
    // all of these with the lock
    bool    post(lucebox_server_event & event, bool first = false); // false if the policy is given up, or too far behind
    bool    is_worth_it(std::unique_lock<std::mutex> & lock, const server_draft_reply & reply);
    bool    is_late();                          // it has not answered for longer than the limit
    bool    drafts(const server_draft_pass & pass) const;        // some were made, or are to be in the next one
    bool    ends_one(const server_draft_pass & pass) const;      // a reply has all its tokens
    void    give_up_locked(const std::string & reason);

    // what each cycle of a pass is planned to do
    struct planned {
        int32_t width   = 1; // rows to verify
        int32_t n_draft = 0;
        int32_t widest  = 1; // that is possible and wanted
    };
    std::vector<planned> plan_each(const server_draft_pass & pass, bool policy);
    void                 make_room(const server_draft_pass & pass, std::vector<planned> & plans);

    void take_answer(const lucebox_server_event & event);
    void wake_policy(std::unique_lock<std::mutex> & lock); // gives the lock back
    void pay(std::chrono::steady_clock::time_point start);
    bool answer_in_time(std::unique_lock<std::mutex> & lock); // so that the next pass need not wait
    bool answer_here(std::unique_lock<std::mutex> & lock, size_t n_most = SIZE_MAX); // what is posted; false if it cannot

    std::mutex              mutex;
    std::condition_variable posted;
    std::condition_variable answered;

    std::deque<lucebox_server_event> queue;
    lucebox_server_event             asked      = {}; // answer to the last ASK or WORTH
    lucebox_server_event *           called     = nullptr; // where `call` answers
    int32_t                          (*call)()  = nullptr; // null: the policy is not called here
    bool                             busy       = false;   // somebody asks the policy
    int64_t                          ticket     = 0;  // of the last event
    int64_t                          done       = 0;  // of the last event that is dealt with
    int64_t                          told       = 0;  // of the last event that the policy was woken for
    std::chrono::steady_clock::time_point answered_at; // or asked, when nothing was to be answered before
    bool                             was_late   = false;
    bool                             closing    = false;
    bool                             closed     = false; // the policy's thread took notice, or has ended
    std::thread::id                  policy_thread;
    bool                             has_policy = false;

    bool        requested = false;
    bool        effective = false;
    bool        require   = false;
    bool        even      = false;
    std::string reason_code;
    std::string reason;
    std::string name;
    std::string failure; // why the policy was given up, empty while it is not
    int32_t     verify_width = 1;
    int32_t     max_width    = 1;
    int64_t     limit_us     = 0;
    int64_t     wait_us      = 0;
    int64_t     account_us   = 0;     // that may be waited for answers
    bool        is_awaited   = false; // the answer to the last report is
    bool        is_drafting  = false; // the last pass was planned to
    bool        on_gpu       = false;

    std::vector<slot_state> slots;
    int64_t                 pass_us  = 0; // of the last pass
    uint64_t                n_late   = 0; // times that it became late
    uint64_t                n_old    = 0; // passes whose plan was not made after the pass before
    uint64_t                n_passes = 0;
    uint64_t                n_runs   = 0; // of the model, in these passes
    const llama_context *   trunk    = nullptr;
    common_json             drafter  = { { "kind", "upstream" } };
    std::unique_ptr<build_watch> runs; // of the pass that is underway
    std::atomic<int64_t>    spent_ns{0};
};

mailbox & policy_mailbox();

} // namespace lucebox
