#include "server_policy.h"

#include "even_drafts.h"
#include "graphs.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace lucebox {

using json = common_json;

namespace {

using clock = std::chrono::steady_clock;

constexpr int32_t MAX_ROWS  = MAX_PASS_ROWS;
constexpr int64_t MIN_WAIT_US = 100;                        // shorter waits take longer than they say
constexpr int64_t MAX_WAIT_US = 2000;                       // that is saved up
constexpr int64_t WAIT_SHARE  = 500;                        // of a pass may be waited for its policy, or `wait_us`
constexpr int64_t SHORT_US    = 5000;                       // pass in which to wake a thread is much
constexpr int64_t MOST_HELD   = 8;                          // reports that are kept back until a further one
constexpr auto    BEGINNING = std::chrono::milliseconds(2); // that a reply waits to hear whether it has drafts

const char * const ACTIVE        = "active";
const char * const OFF_REQUESTED = "off-requested";
const char * const POLICY_FAILED = "policy-failed";
const char * const NOT_WORTH_IT  = "not-worth-it";

// Adds the time of a scope.
class stopwatch {
  public:
    explicit stopwatch(std::atomic<int64_t> & total_ns) : total_ns(total_ns), start(clock::now()) {}
    ~stopwatch() { total_ns += std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - start).count(); }

  private:
    std::atomic<int64_t> &  total_ns;
    const clock::time_point start;
};

template <typename Values, typename T> int32_t copy_some(const Values & from, T * to, int32_t n_max) {
    const int32_t n = std::min<int32_t>(from.size(), n_max);
    std::copy_n(from.begin(), n, to);
    return n;
}

} // namespace

mailbox::mailbox() = default;
mailbox::~mailbox() = default;

mailbox & policy_mailbox() {
    static mailbox * box = new mailbox; // never destroyed: threads of the server may outlive static objects
    return *box;
}

void mailbox::init(const lucebox_server_policy_params & params) {
    const json spec = json::parse(params.spec_json);
    requested    = spec.at("requested").get<bool>();
    effective    = spec.at("effective").get<bool>();
    reason_code  = spec.at("reason_code").get<std::string>();
    reason       = spec.at("reason").get<std::string>();
    has_policy   = params.policy_name != nullptr;
    name         = has_policy ? params.policy_name : "fixed";
    verify_width = params.verify_width;
    max_width    = std::clamp<int32_t>(params.max_width, 1, MAX_ROWS);
    require      = params.require != 0;
    even         = params.even_drafts != 0;
    limit_us     = params.limit_us;
    wait_us      = params.wait_us;
    server_set_draft_policy(this);
}

void mailbox::set_drafter(const llama_context * context, bool is_on_gpu, const json & description) {
    const std::lock_guard<std::mutex> lock(mutex);
    trunk   = context;
    on_gpu  = is_on_gpu;
    drafter = description;
    runs.reset();
}

bool mailbox::loaded(int32_t n_slots, int32_t n_draft_max) {
    std::unique_lock<std::mutex> lock(mutex);
    slots.resize(n_slots);
    if (effective && n_draft_max == 0) {
        effective   = false;
        reason_code = "context-failed";
        reason      = "the MTP block was found, but the server could not make its context; its log says why";
    }
    max_width = effective ? std::min(max_width, n_draft_max + 1) : 1;
    if (!effective && require) {
        std::fprintf(stderr, "lucebox: --spec require, but there are no drafts: %s (%s)\n", reason.c_str(), reason_code.c_str());
        return false;
    }
    if (asks_policy()) {
        lucebox_server_event event = {};
        event.kind        = LUCEBOX_SERVER_LOADED;
        event.n_slots     = n_slots;
        event.n_draft_max = max_width - 1;
        post(event);
        wake_policy(lock);
    }
    return true;
}

const char * mailbox::begin(server_draft_reply & reply) {
    std::unique_lock<std::mutex> lock(mutex);
    stopwatch watch(spent_ns);
    auto & slot = slots.at(reply.id_slot);
    slot.wanted       = reply.width != 0 ? reply.width : verify_width;
    slot.next_width   = 1;
    slot.next_n_draft = 0;
    slot.next_ask     = false;
    slot.used         = true;
    reply.has_drafts = effective && slot.wanted != 1;
    if (!effective) {
        return reason_code.c_str();
    }
    if (slot.wanted != 0) {
        return slot.wanted == 1 ? OFF_REQUESTED : ACTIVE;
    }
    const bool is_refused = !is_worth_it(lock, reply);
    reply.has_drafts      = asks_policy() && !is_refused;
    if (!reply.has_drafts) {
        slot.wanted = 1;
        return is_refused ? NOT_WORTH_IT : POLICY_FAILED;
    }
    lucebox_server_event event = {};
    event.kind     = LUCEBOX_SERVER_BEGIN;
    event.n_slots  = 1;
    event.n_active = 1 + reply.n_others;
    event.slots[0].slot      = reply.id_slot;
    event.slots[0].n_past    = reply.n_prompt;
    event.slots[0].n_left    = reply.n_left;
    event.slots[0].max_width = max_width;
    slot.first = ticket + 1;
    if (post(event)) {
        slot.posted = event.ticket;
        wake_policy(lock); // it has the time of the prompt
    }
    return ACTIVE;
}

// Without an answer in time it is.
bool mailbox::is_worth_it(std::unique_lock<std::mutex> & lock, const server_draft_reply & reply) {
    if (reply.n_others > 0 && is_drafting) {
        return true; // slots that run together draft the same number: without drafts it would keep others from theirs
    }
    lucebox_server_event event = {};
    event.kind    = LUCEBOX_SERVER_WORTH;
    event.n_slots = 1;
    event.slots[0].slot     = reply.id_slot;
    event.slots[0].n_tokens = reply.n_to_run;
    event.slots[0].n_left   = reply.n_left;
    if (is_late() || !post(event, /*first=*/true)) {
        return true;
    }
    const auto is_there = [&] { return asked.ticket == event.ticket; };
    if (!answer_here(lock, 1)) {
        wake_policy(lock);
        lock.lock();
        answered.wait_for(lock, BEGINNING, [&] { return is_there() || !asks_policy(); });
    }
    return !is_there() || asked.slots[0].refused == 0;
}

// What the slots' thread waited for since `start`. A hiccup is not paid off for long.
void mailbox::pay(clock::time_point start) {
    const auto us = std::chrono::duration_cast<std::chrono::microseconds>(clock::now() - start).count();
    account_us    = std::max(account_us - us, -MAX_WAIT_US);
}

void mailbox::plan(server_draft_pass & pass) {
    std::unique_lock<std::mutex> lock(mutex);
    stopwatch watch(spent_ns);
    const int32_t n_active = pass.cycles.size();
    n_passes++;
    if (trunk) {
        runs = std::make_unique<build_watch>(trunk);
    }

    const bool policy = asks_policy() && !is_late();
    account_us = std::min(account_us + std::max(wait_us, pass_us / WAIT_SHARE), std::max(MAX_WAIT_US, wait_us));
    const auto is_known = [&] {
        return std::all_of(pass.cycles.begin(), pass.cycles.end(), [&](const auto & cycle) {
            const auto & slot = slots.at(cycle.id_slot);
            return slot.wanted != 0 || slot.known >= slot.posted;
        });
    };
    if (policy && !is_known()) {
        // the last plan will do where there is no time to wait for a better one
        const auto start = clock::now();
        if (!is_awaited || account_us < MIN_WAIT_US || !answered.wait_for(lock, std::chrono::microseconds(account_us), is_known)) {
            n_old++;
        }
        pay(start);
    }

    auto plans = plan_each(pass, policy);
    if (n_active > 1) {
        make_room(pass, plans);
    }
    is_drafting = false;
    for (int32_t i = 0; i < n_active; ++i) {
        auto & slot = slots[pass.cycles[i].id_slot];
        is_drafting = is_drafting || plans[i].n_draft > 0;
        pass.cycles[i].n_draft = plans[i].n_draft;
        pass.cycles[i].ask     = slot.ask;
        slot.n_verify = plans[i].width - 1;
        slot.widest   = plans[i].widest;
    }
}

std::vector<mailbox::planned> mailbox::plan_each(const server_draft_pass & pass, bool policy) {
    std::vector<planned> plans(pass.cycles.size());
    for (size_t i = 0; i < plans.size(); ++i) {
        const auto & cycle = pass.cycles[i];
        auto &       slot  = slots.at(cycle.id_slot);
        auto &       plan  = plans[i];
        slot.ask    = false;
        plan.widest = cycle.n_draft_max > 0 ? std::min(max_width, cycle.n_draft_max + 1) : cycle.n_fixed + 1;
        if (cycle.n_draft_max == 0) {
            plan.width = plan.widest;
        } else if (slot.wanted != 0) {
            plan.widest  = std::min(slot.wanted, plan.widest);
            plan.width   = plan.widest;
            plan.n_draft = plan.width - 1;
        } else if (policy) {
            slot.used    = true;
            plan.width   = std::clamp(slot.next_width, 1, plan.widest);
            plan.n_draft = std::clamp(slot.next_n_draft, plan.width - 1, plan.widest - 1);
            slot.ask     = slot.next_ask && plan.n_draft > 0;
        } else {
            plan.widest = 1; // without its policy a slot has no drafts, whatever the others do
        }
    }
    return plans;
}

// What each slot of a pass of several gets of its rows: nobody is asked once more.
void mailbox::make_room(const server_draft_pass & pass, std::vector<planned> & plans) {
    std::vector<pass_share> shares;
    for (size_t i = 0; i < plans.size(); ++i) {
        slots[pass.cycles[i].id_slot].ask = false;
        shares.push_back({ plans[i].width, plans[i].widest, pass.cycles[i].n_fixed > 0 });
    }
    share_rows(shares, even);
    for (size_t i = 0; i < plans.size(); ++i) {
        plans[i].width   = shares[i].width;
        plans[i].n_draft = pass.cycles[i].n_draft_max > 0 ? plans[i].width - 1 : 0;
    }
}

int32_t mailbox::more(int32_t id_slot, const std::vector<float> & probs) {
    std::unique_lock<std::mutex> lock(mutex);
    stopwatch watch(spent_ns);
    auto & slot = slots.at(id_slot);

    lucebox_server_event event = {};
    event.kind     = LUCEBOX_SERVER_ASK;
    event.n_active = 1;
    event.n_slots  = 1;
    auto & entry = event.slots[0];
    entry.slot       = id_slot;
    entry.max_width  = slot.widest;
    entry.next_width = slot.n_verify + 1;
    entry.n_drafted  = copy_some(probs, entry.probs, LUCEBOX_SERVER_MAX_DRAFT);
    if (account_us <= 0 || !post(event)) {
        return 0;
    }
    // this answer is worth a wait: without it there are no more drafts, and these are verified as planned
    const auto start    = clock::now();
    const auto is_there = [&] { return asked.ticket == event.ticket; };
    if (!answer_here(lock)) {
        wake_policy(lock);
        lock.lock();
        answered.wait_for(lock, std::chrono::microseconds(std::max(account_us, MIN_WAIT_US)), is_there);
    }
    pay(start);
    if (!is_there()) {
        return 0;
    }
    slot.n_verify = std::clamp(asked.slots[0].next_width, 1, slot.widest) - 1;
    return std::clamp(asked.slots[0].next_n_draft, 0, slot.widest - 1 - (int32_t) probs.size());
}

void mailbox::trim(server_draft_pass & pass) {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto & cycle : pass.cycles) {
        cycle.n_verify = std::min<int32_t>(slots.at(cycle.id_slot).n_verify, cycle.drafts.size());
    }
}

void mailbox::report(const server_draft_pass & pass) {
    std::unique_lock<std::mutex> lock(mutex);
    stopwatch watch(spent_ns);

    lucebox_server_event event = {};
    event.kind        = LUCEBOX_SERVER_REPORT;
    event.n_active    = pass.cycles.size();
    event.draft_us    = pass.t_draft_us;
    event.verify_us   = pass.t_verify_us;
    event.graph_built = pass.graph_built;
    event.with_prompt = pass.with_prompt;
    pass_us = pass.t_draft_us + pass.t_verify_us;
    if (runs) {
        n_runs += runs->n_passes();
        runs.reset();
    }
    const bool is_held = even && std::any_of(pass.cycles.begin(), pass.cycles.end(), [this](const auto & cycle) {
        return slots.at(cycle.id_slot).wanted == 1; // so that nobody beside it drafts, see share_rows
    });
    const int32_t widest    = is_held ? 1 : max_width;
    int32_t       n_planned = 0; // slots whose next pass the policy plans
    for (const auto & cycle : pass.cycles) {
        auto & slot = slots.at(cycle.id_slot);
        event.n_rows += cycle.n_verify + 1;
        if (cycle.tokens.empty()) {
            continue; // it came to nothing, for example because a draft is verified once more
        }
        slot.n_pass_of_width[std::min(cycle.n_verify, LUCEBOX_SERVER_MAX_DRAFT)]++;
        slot.n_pass_of_tokens[std::min<size_t>(cycle.tokens.size() - 1, LUCEBOX_SERVER_MAX_DRAFT)]++;
        if (pass.cycles.size() <= LUCEBOX_SERVER_MAX_SLOTS) {
            auto & entry = event.slots[event.n_slots++];
            entry.slot       = cycle.id_slot;
            entry.width      = cycle.n_verify + 1;
            entry.n_accepted = cycle.n_accepted;
            entry.n_past     = cycle.n_past + cycle.tokens.size();
            entry.n_left     = cycle.n_left < 0 ? -1 : std::max(0, cycle.n_left - (int32_t) cycle.tokens.size());
            entry.n_drafted  = copy_some(cycle.drafts, entry.drafts, LUCEBOX_SERVER_MAX_DRAFT);
            copy_some(cycle.probs, entry.probs, LUCEBOX_SERVER_MAX_DRAFT);
            entry.n_tokens = copy_some(cycle.tokens, entry.tokens, LUCEBOX_SERVER_MAX_DRAFT + 1);
            if (slot.wanted == 0) {
                entry.max_width = entry.n_left < 0 ? widest : std::clamp(entry.n_left, 1, widest);
                n_planned++;
            }
        }
    }
    if (n_planned > 0 && effective && post(event)) {
        for (int32_t i = 0; i < event.n_slots; ++i) {
            slots[event.slots[i].slot].posted = event.ticket;
        }
        is_awaited          = pass_us >= SHORT_US || drafts(pass);
        const bool may_hold = !is_awaited && !ends_one(pass) && ticket - told < MOST_HELD; // and be told of with the next
        if (!may_hold && !(is_awaited && answer_in_time(lock))) {
            wake_policy(lock);
        }
    }
}

// Where a GPU computes, the caches of this thread are warm, and the policy is done before another thread would be awake.
// Behind a pass on the CPU it takes several times as long, and would better do so beside the next pass.
bool mailbox::answer_in_time(std::unique_lock<std::mutex> & lock) {
    const auto start = clock::now();
    if (!on_gpu || account_us <= 0 || !answer_here(lock)) {
        return false;
    }
    pay(start);
    return true;
}

bool mailbox::drafts(const server_draft_pass & pass) const {
    return std::any_of(pass.cycles.begin(), pass.cycles.end(), [this](const auto & cycle) {
        const auto & slot = slots.at(cycle.id_slot);
        return !cycle.drafts.empty() || slot.next_width > 1 || slot.next_n_draft > 0;
    });
}

bool mailbox::ends_one(const server_draft_pass & pass) const {
    return std::any_of(pass.cycles.begin(), pass.cycles.end(), [](const auto & cycle) {
        return cycle.n_left >= 0 && cycle.n_left <= (int32_t) cycle.tokens.size();
    });
}

} // namespace lucebox
