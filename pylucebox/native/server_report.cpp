// What the server tells of drafts and their policy, to any thread that asks: /health, /props and /metrics.
#include "even_drafts.h"
#include "server_policy.h"

#include <sstream>

namespace lucebox {

using json = common_json;

namespace {

void add_histogram(std::ostream & out, const char * name, size_t slot, const uint64_t (&counts)[MAX_PASS_ROWS]) {
    uint64_t n   = 0;
    uint64_t sum = 0;
    for (int32_t i = 0; i < MAX_PASS_ROWS; ++i) {
        n   += counts[i];
        sum += counts[i] * (i + 1);
        out << name << "_bucket{slot=\"" << slot << "\",le=\"" << i + 1 << "\"} " << n << "\n";
    }
    out << name << "_bucket{slot=\"" << slot << "\",le=\"+Inf\"} " << n << "\n"
        << name << "_sum{slot=\"" << slot << "\"} " << sum << "\n"
        << name << "_count{slot=\"" << slot << "\"} " << n << "\n";
}

} // namespace

std::string mailbox::state() {
    std::lock_guard<std::mutex> lock(mutex);
    json policy = {
        { "name", name },
        { "verify_width", verify_width },
        { "max_width", max_width },
        { "state", !failure.empty() ? "failed" : was_late ? "late" : "ok" },
        { "late", n_late },
    };
    if (!failure.empty()) {
        policy["reason"] = failure;
    }
    json out = {
        { "requested", requested },
        { "effective", effective },
        { "reason_code", reason_code },
        { "reason", reason },
        { "policy", policy },
    };
    if (effective) {
        out["drafter"] = drafter;
    }
    return out.dump();
}

std::string mailbox::metrics() {
    std::lock_guard<std::mutex> lock(mutex);
    std::ostringstream out;
    const auto head = [&out](const char * metric, const char * type, const char * help) {
        out << "# HELP " << metric << " " << help << "\n# TYPE " << metric << " " << type << "\n";
    };
    head("lucebox_verify_width", "histogram", "Rows that a slot verified in a pass");
    for (size_t i = 0; i < slots.size(); ++i) {
        add_histogram(out, "lucebox_verify_width", i, slots[i].n_pass_of_width);
    }
    head("lucebox_accepted_length", "histogram", "Tokens that a slot got from a pass");
    for (size_t i = 0; i < slots.size(); ++i) {
        add_histogram(out, "lucebox_accepted_length", i, slots[i].n_pass_of_tokens);
    }
    head("lucebox_spec_effective", "gauge", "1 if drafts can be made");
    out << "lucebox_spec_effective " << effective << "\n";
    head("lucebox_spec_info", "gauge", "Why drafts are made or not");
    out << "lucebox_spec_info{reason=\"" << reason_code << "\"} 1\n";
    head("lucebox_policy_failed", "gauge", "1 if the width policy was given up");
    out << "lucebox_policy_failed " << !failure.empty() << "\n";
    head("lucebox_policy_late_total", "counter", "Times that the width policy did not answer, so that drafts were left out");
    out << "lucebox_policy_late_total " << n_late << "\n";
    head("lucebox_passes_total", "counter", "Passes that generated something");
    out << "lucebox_passes_total " << n_passes << "\n";
    head("lucebox_model_runs_total", "counter", "Runs of the whole model in these passes: several in one where slots differ in width");
    out << "lucebox_model_runs_total " << n_runs << "\n";
    head("lucebox_policy_old_plans_total", "counter", "Passes whose width was chosen before the end of the pass before");
    out << "lucebox_policy_old_plans_total " << n_old << "\n";
    head("lucebox_policy_seconds_total", "counter", "Time that passes spent on choosing their widths");
    out << "lucebox_policy_seconds_total " << spent_ns.load() / 1e9 << "\n";
    return out.str();
}

} // namespace lucebox
