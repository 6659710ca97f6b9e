// Which memory the kernel for the end of a draft is given, in graphs whose tensors share some. `common.cuh` here is a
// stand-in that keeps a launch's arguments.

#include "common.cuh"
#include "lucebox-draft.cuh"

#include "ggml-cpu.h"

#include <cstdio>
#include <cstring>
#include <string>

std::vector<const void *> launched; // pointers among the arguments

namespace {

constexpr int N_LOGITS = 64;
constexpr int N_BEFORE = 3; // drafts before

struct End {
    ggml_tensor * logits, * ids, * before, * column, * token, * drafts;
    ggml_cgraph * graph;
};

// The nodes that a step of a chain ends with, in the order in which it has them.
End build(ggml_context * ctx, int n_seqs) {
    End end;
    end.logits = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, N_LOGITS, n_seqs);
    end.ids    = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 1, N_LOGITS);
    end.before = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 2, N_BEFORE, n_seqs);
    end.column = ggml_argmax(ctx, end.logits);
    ggml_tensor * token = ggml_get_rows(ctx, end.ids, end.column);
    end.token = token;
    ggml_tensor * number = ggml_cast(ctx, ggml_reshape_1d(ctx, token, n_seqs), GGML_TYPE_F32);
    ggml_tensor * prob   = ggml_get_rows(ctx, ggml_reshape_3d(ctx, ggml_soft_max(ctx, end.logits), 1, N_LOGITS, n_seqs),
                                         ggml_reshape_2d(ctx, end.column, 1, n_seqs));
    ggml_tensor * pair = ggml_concat(ctx, ggml_reshape_3d(ctx, number, 1, 1, n_seqs), prob, 0);
    end.drafts = ggml_concat(ctx, end.before, pair, 1);
    end.graph  = ggml_new_graph(ctx);
    for (ggml_tensor * node : { end.column, number, prob, end.drafts }) {
        ggml_build_forward_expand(end.graph, node);
    }
    return end;
}

} // namespace

// usage: draft_memory SEQUENCES NAME NAME: the first tensor lies where the second does. Prints what is launched.
int main(int, char ** argv) {
    ggml_context * ctx = ggml_init({ 1 << 20, nullptr, /*.no_alloc =*/ false });
    End            end = build(ctx, std::stoi(argv[1]));

    const auto named = [&](const std::string & name) {
        return name == "logits" ? end.logits : name == "ids" ? end.ids : name == "before" ? end.before :
               name == "column" ? end.column : name == "token" ? end.token : end.drafts;
    };
    named(argv[2])->data = named(argv[3])->data;

    int first = 0;
    while (end.graph->nodes[first] != end.column) {
        ++first;
    }
    ggml_backend_cuda_context cuda;
    const int n_covered = lucebox_draft_of_logits(cuda, end.graph, first);
    if (n_covered == 0) {
        std::printf("single nodes\n");
    } else {
        const bool is_all = first + n_covered == end.graph->n_nodes - 1;
        std::printf("%s: column %s, token %s\n", is_all ? "one kernel" : "part", launched[2] ? "written" : "left",
                    launched[3] ? "written" : "left");
    }
    ggml_free(ctx);
}
