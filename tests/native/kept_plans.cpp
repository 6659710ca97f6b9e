// Asks for plans of graphs with numbers and prints how many were made. The planner is the one below.
#include "kept-plans.h"

#include <cstdio>

static int n_planned = 0;

extern "C" ggml_cplan ggml_graph_plan(const ggml_cgraph *, int n_threads, ggml_threadpool * threadpool) {
    ++n_planned;
    ggml_cplan plan = {};
    plan.n_threads  = n_threads;
    plan.work_size  = (size_t) n_planned;
    plan.threadpool = threadpool;
    return plan;
}

static lucebox_kept_plans plans;

static size_t get(uint64_t uid, int n_threads) {
    ggml_cgraph graph = {};
    graph.uid         = uid;
    return plans.get(&graph, n_threads, nullptr).work_size;
}

int main() {
    const size_t first = get(1, 1);
    std::printf("again %d\n", get(1, 1) == first);
    std::printf("other threads %d\n", get(1, 2) != first);
    std::printf("other graph %d\n", get(2, 1) != first);
    std::printf("first still kept %d\n", get(1, 1) == first);
    const size_t part = get(0, 1);
    std::printf("parts are planned each time %d\n", get(0, 1) != part);
    for (uint64_t uid = 3; uid < 100; ++uid) {
        get(uid, 1);
    }
    std::printf("forgotten in the end %d\n", get(1, 1) != first);
    std::printf("the last one is not %d\n", get(99, 1) == get(99, 1));
    return 0;
}
