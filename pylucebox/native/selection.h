// Attention of few rows over the cells that it selected. The tree may also be a prefix of the patch series without it.
#pragma once

#include "llama.h"
#include "llama-cparams.h"
#include "llama-memory-hybrid-idx.h"

#if __has_include("lucebox-selection.h")
#    include "lucebox-selection.h"

// Whether attention of so many rows of a ubatch names its cells, and reads no mask.
inline bool lucebox_names_cells(const llama_cparams & cparams, const llama_ubatch & ubatch,
                                const llama_memory_hybrid_idx_context & memory, int64_t n_rows) {
    return lucebox_may_name_cells(cparams, ubatch) && memory.selects_cells((uint32_t) n_rows);
}
#else
inline bool lucebox_select_cells(llama_context *, bool) {
    return false;
}

inline bool lucebox_names_cells(const llama_cparams &, const llama_ubatch &, const llama_memory_hybrid_idx_context &, int64_t) {
    return false;
}
#endif
