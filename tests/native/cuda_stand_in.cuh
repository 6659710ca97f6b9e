#pragma once

// Stands in for ggml-cuda's common.cuh where a test compiles the host's side of a kernel: a launch only keeps its pointers.

#include "ggml-impl.h"
#include "ggml.h"

#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(n)
#define __shared__ static
#define WARP_SIZE 32

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 blockIdx, threadIdx;

inline void __syncthreads() {}
inline void ggml_cuda_pdl_lc() {}
inline void ggml_cuda_pdl_sync() {}

template <typename T> T __shfl_xor_sync(unsigned, T value, int, int) {
    return value;
}

struct ggml_backend_cuda_context {
    void * stream() { return nullptr; }
};

struct ggml_cuda_kernel_launch_params {
    ggml_cuda_kernel_launch_params(dim3, dim3, size_t, void *) {}
};

extern std::vector<const void *> launched;

template <typename T> void keep_pointer(T argument) {
    if constexpr (std::is_pointer_v<T>) {
        launched.push_back(argument);
    }
}

template <typename Kernel, typename... Arguments>
void ggml_cuda_kernel_launch(Kernel, const ggml_cuda_kernel_launch_params &, Arguments... arguments) {
    (keep_pointer(arguments), ...);
}
