// Attention of few rows over the cells that it selected. The tree may also be a prefix of the patch series without it.
#pragma once

#include "llama.h"

#if __has_include("lucebox-selection.h")
#    include "lucebox-selection.h"
#else
inline bool lucebox_select_cells(llama_context *, bool) {
    return false;
}
#endif
