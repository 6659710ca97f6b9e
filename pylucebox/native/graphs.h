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

// Tells whether a graph was built since it was made.
class build_watch {
  public:
    explicit build_watch(const llama_context * ctx) : ctx(ctx), before(count(ctx)) {}

    bool has_built() const { return (count(ctx) != before) != counts_reused; }

  private:
#ifdef LUCEBOX_COUNTS_REUSED_GRAPHS
    static constexpr bool counts_reused = true;

    static int64_t count(const llama_context * ctx) { return llama_perf_context(ctx).n_reused; }
#else
    static constexpr bool counts_reused = false;

    static int64_t count(const llama_context * ctx) { return lucebox_graphs_built(ctx); }
#endif

    const llama_context * ctx;
    const int64_t         before;
};

} // namespace lucebox
