// Graphs that a context keeps. The tree may also be a prefix of the patch series, which keeps none.
#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>

#if __has_include("lucebox-graphs.h")
#    include "lucebox-graphs.h"
#else
inline void lucebox_keep_graphs(llama_context *, uint32_t, uint32_t) {}

inline size_t lucebox_kept_graphs_max_bytes(const llama_context *) {
    return 0;
}

#    define LUCEBOX_COUNTS_REUSED_GRAPHS
#endif

namespace lucebox {

// Graphs that a context ran again, and those that it built to run; the latter cannot be told without the patch.
struct graph_counts {
    int64_t n_built  = 0;
    int64_t n_reused = 0;

    explicit graph_counts(const llama_context * ctx) :
#ifndef LUCEBOX_COUNTS_REUSED_GRAPHS
        n_built(lucebox_graphs_built(ctx)),
#endif
        n_reused(llama_perf_context(ctx).n_reused) {
    }
};

// What a context did since this was made.
class build_watch {
  public:
    explicit build_watch(const llama_context * ctx) : ctx(ctx), before(ctx) {}

#ifdef LUCEBOX_COUNTS_REUSED_GRAPHS
    bool has_built() const { return graph_counts(ctx).n_reused == before.n_reused; }
#else
    bool has_built() const { return graph_counts(ctx).n_built != before.n_built; }
#endif

    // How often the whole model ran: once for each part into which its batches were split.
    int32_t n_passes() const {
        const graph_counts now(ctx);
        return (int32_t) (now.n_built - before.n_built + now.n_reused - before.n_reused);
    }

  private:
    const llama_context * ctx;
    const graph_counts    before;
};

} // namespace lucebox
