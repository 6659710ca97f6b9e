// What passes of the server cost on this machine, timed when the model is loaded.
#pragma once

#include "server.h"
#include "server_drafts.h"

namespace lucebox {

// Times passes of one slot at all widths on a text that nobody reads, as the server runs them. Both contexts must be
// clear, and are clear afterwards. Leaves `out` without measurements (n_past 0) when it fails or takes too long.
void measure_costs(llama_context * trunk, server_drafter & drafter, lucebox_server_costs & out);

} // namespace lucebox
