// Counts calls of the CUDA runtime. Put in front of it with LD_PRELOAD; gpu_bench/calls.py reads the counts.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// Arguments pass through as they are: all of these take at most eight words, on the stack or in registers.
typedef uintptr_t word;
typedef int (*call_fn)(word, word, word, word, word, word, word, word);

// A Python extension brings the runtime along where RTLD_NEXT does not look.
static void * find(const char * name) {
    static const char * const libraries[] = { "libcudart.so.13", "libcudart.so.12", "libcudart.so" };

    void * found = dlsym(RTLD_NEXT, name);
    for (size_t i = 0; found == NULL && i < sizeof(libraries)/sizeof(libraries[0]); ++i) {
        void * library = dlopen(libraries[i], RTLD_LAZY | RTLD_NOLOAD);
        found          = library ? dlsym(library, name) : NULL;
    }
    if (found == NULL) {
        abort();
    }
    return found;
}

#define CALLS(X)                                                                                                       \
    X(cudaStreamSynchronize) X(cudaDeviceSynchronize) X(cudaEventSynchronize) X(cudaMemcpy) X(cudaMemcpyAsync)         \
    X(cudaMemcpy2DAsync) X(cudaMemsetAsync) X(cudaStreamBeginCapture) X(cudaStreamEndCapture) X(cudaGraphInstantiate)  \
    X(cudaGraphExecUpdate) X(cudaGraphLaunch) X(cudaLaunchKernel) X(cudaMalloc) X(cudaFree)

#define COUNTER(name) static atomic_long n_##name;
CALLS(COUNTER)

#define WRAPPER(name)                                                                                                  \
    int name(word a, word b, word c, word d, word e, word f, word g, word h) {                                         \
        static _Atomic(void *) next;                                                                                   \
        void *                 to = atomic_load(&next);                                                                \
        if (to == NULL) {                                                                                              \
            to = find(#name);                                                                                          \
            atomic_store(&next, to);                                                                                   \
        }                                                                                                              \
        atomic_fetch_add(&n_##name, 1);                                                                                \
        return ((call_fn) to)(a, b, c, d, e, f, g, h);                                                                 \
    }
CALLS(WRAPPER)

// Calls so far by name; -1 for a name that is not counted.
long gpu_bench_n_calls(const char * name) {
#define LOOKUP(each)                                                                                                   \
    if (strcmp(name, #each) == 0) {                                                                                    \
        return atomic_load(&n_##each);                                                                                 \
    }
    CALLS(LOOKUP)
    return -1;
}
