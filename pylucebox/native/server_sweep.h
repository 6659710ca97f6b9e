// What passes of the server cost on this machine, timed when the model is loaded.
#pragma once

#include "server.h"
#include "server_drafts.h"

#include <array>

namespace lucebox {

// By the slots that take part in a pass, less one. Of more there are no drafts.
using costs_by_slots = std::array<lucebox_server_costs, 4>;

// Whether layers of a model are on a GPU.
bool is_on_gpu(const llama_context * trunk);

// Times passes of one slot at all widths, and of several where that does not take long, on a text that nobody reads, as the
// server runs them. Both contexts must be clear, and are clear afterwards. Leaves without measurements (n_past 0) what fails
// or takes too long.
void measure_costs(llama_context * trunk, server_drafter & drafter, costs_by_slots & out);

} // namespace lucebox
