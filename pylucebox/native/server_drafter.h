// Brings the engine's drafter into the server: before the models are loaded, and when their contexts are there.
#pragma once

#include "server.h"

#include <functional>

namespace lucebox {

// Runs the server with the drafter that lucebox_server_use_drafter() asked for, if it did.
int run_with_drafter(const std::function<int()> & serve);

} // namespace lucebox
