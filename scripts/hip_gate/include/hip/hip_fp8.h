// What ggml uses of HIP's 8-bit floats: one type. gfx1151 has none of its instructions; the values are not those of the format.
#pragma once

#include <hip/hip_runtime.h>

typedef unsigned char __hip_fp8_storage_t;

struct __hip_fp8_e4m3 {
    __hip_fp8_storage_t __x;

    __hip_fp8_e4m3() = default;
    __host__ __device__ explicit __hip_fp8_e4m3(float value) : __x((__hip_fp8_storage_t) (int) value) {}
    __host__ __device__ operator float() const { return (float) __x; }
};
