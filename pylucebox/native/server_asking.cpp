#include "server_policy.h"

#include <algorithm>
#include <cstdio>

// Asking the policy: what its thread does, and what the slots' thread does to be answered.

namespace lucebox {

namespace {

using clock = std::chrono::steady_clock;

constexpr size_t  MAX_QUEUE = 256; // events that a policy may be behind
constexpr int64_t GIVE_UP   = 20;  // limits without an answer before the policy is given up
constexpr auto    CLOSING   = std::chrono::milliseconds(500);

} // namespace

// ---- the policy's thread -------------------------------------------------------------------------------------------

void mailbox::next(lucebox_server_event & out) {
    std::unique_lock<std::mutex> lock(mutex);
    policy_thread = std::this_thread::get_id();
    posted.wait(lock, [this] { return closing || (!queue.empty() && !busy); });
    if (closing) {
        closed   = true;
        out      = {};
        out.kind = LUCEBOX_SERVER_CLOSED;
        answered.notify_all();
        return;
    }
    busy = true;
    out  = queue.front();
    queue.pop_front();
}

void mailbox::answer(const lucebox_server_event & event) {
    {
        std::lock_guard<std::mutex> lock(mutex);
        busy = false;
        take_answer(event);
    }
    answered.notify_all();
}

void mailbox::take_answer(const lucebox_server_event & event) {
    done        = std::max(done, event.ticket);
    answered_at = clock::now();
    if (event.kind == LUCEBOX_SERVER_ASK || event.kind == LUCEBOX_SERVER_WORTH) {
        asked = event;
        return;
    }
    for (int32_t i = 0; event.kind != LUCEBOX_SERVER_LOADED && i < event.n_slots; ++i) {
        const auto & entry = event.slots[i];
        auto &       slot  = slots.at(entry.slot);
        if (event.ticket < slot.first || slot.wanted != 0) {
            continue; // that reply is over, or was never planned
        }
        slot.known = event.ticket;
        if (!slot.used && slot.next_n_draft > 0 && entry.next_n_draft == 0) {
            continue; // what it wanted drafts for, and has paid for, is still to come
        }
        slot.used         = false;
        slot.next_width   = entry.next_width;
        slot.next_n_draft = entry.next_n_draft;
        slot.next_ask     = entry.next_ask != 0;
    }
}

void mailbox::use_call(lucebox_server_event * event, int32_t (*answer)()) {
    const std::lock_guard<std::mutex> lock(mutex);
    called = event;
    call   = answer;
}

void mailbox::give_up(const std::string & text) {
    {
        std::lock_guard<std::mutex> lock(mutex);
        give_up_locked(text);
        closed = closed || std::this_thread::get_id() == policy_thread; // which ends now
    }
    answered.notify_all();
}

void mailbox::give_up_locked(const std::string & text) {
    if (failure.empty()) {
        failure = text.empty() ? "no reason given" : text;
        std::fprintf(stderr, "lucebox: the width policy is given up, no drafts from now on: %s\n", failure.c_str());
    }
    queue.clear();
}

bool mailbox::close() {
    std::unique_lock<std::mutex> lock(mutex);
    closing = true;
    posted.notify_all();
    return !has_policy || answered.wait_for(lock, CLOSING, [this] { return closed; });
}

// ---- the slots' thread ---------------------------------------------------------------------------------------------

bool mailbox::post(lucebox_server_event & event, bool first) {
    if (!asks_policy() || queue.size() >= MAX_QUEUE) {
        return false; // one that hangs is not told everything
    }
    event.ticket = ++ticket;
    queue.insert(first ? queue.begin() : queue.end(), event);
    return true;
}

// With the lock given back first, so that the thread that wakes does not run into it.
void mailbox::wake_policy(std::unique_lock<std::mutex> & lock) {
    if (done >= told) {
        answered_at = clock::now();
    }
    told = ticket;
    lock.unlock();
    posted.notify_one();
}

bool mailbox::answer_here(std::unique_lock<std::mutex> & lock, size_t n_most) {
    if (!call || busy) {
        return false;
    }
    busy = true;
    if (n_most >= queue.size()) {
        told = ticket;
    }
    for (; n_most > 0 && !queue.empty() && asks_policy(); --n_most) {
        *called = queue.front();
        queue.pop_front();
        const auto start = clock::now();
        lock.unlock();
        const bool is_answered = call() != 0;
        lock.lock();
        if (is_answered) {
            take_answer(*called);
        }
        if (clock::now() - start > std::chrono::microseconds(limit_us)) {
            call = nullptr; // somebody holds Python's lock: its own thread can be waited for
            break;
        }
    }
    busy = false;
    if (!queue.empty() && queue.front().ticket <= told) {
        posted.notify_one(); // it may have found the policy busy
    }
    return true;
}

bool mailbox::is_late() {
    const int64_t silent_us = done >= told ? 0 : std::chrono::duration_cast<std::chrono::microseconds>(clock::now() - answered_at).count();
    const bool    late      = silent_us > limit_us;
    n_late += late && !was_late;
    was_late = late;
    if (silent_us > GIVE_UP * limit_us) {
        give_up_locked("it has not answered for " + std::to_string(silent_us / 1000) + " ms");
    }
    return late;
}

} // namespace lucebox

extern "C" {

void lucebox_server_policy_init(const lucebox_server_policy_params * params) {
    lucebox::policy_mailbox().init(*params);
}

void lucebox_server_policy_next(lucebox_server_event * out) {
    lucebox::policy_mailbox().next(*out);
}

void lucebox_server_policy_answer(const lucebox_server_event * event) {
    lucebox::policy_mailbox().answer(*event);
}

void lucebox_server_policy_call(lucebox_server_event * event, int32_t (*answer)(void)) {
    lucebox::policy_mailbox().use_call(event, answer);
}

void lucebox_server_policy_give_up(const char * reason) {
    lucebox::policy_mailbox().give_up(reason);
}
}
