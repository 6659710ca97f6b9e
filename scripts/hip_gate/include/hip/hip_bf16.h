// What ggml uses of HIP's bfloat16: two types and the conversions. Enough to compile, rounded as the format asks.
#pragma once

#include <hip/hip_runtime.h>

struct __attribute__((aligned(2))) __hip_bfloat16 {
    unsigned short __x;

    __hip_bfloat16() = default;
    __host__ __device__ __hip_bfloat16(float value) : __x(from_float(value)) {}
    __host__ __device__ __hip_bfloat16(double value) : __x(from_float((float) value)) {}
    __host__ __device__ __hip_bfloat16(int value) : __x(from_float((float) value)) {}

    __host__ __device__ operator float() const { return __builtin_bit_cast(float, (unsigned) __x << 16); }

  private:
    __host__ __device__ static unsigned short from_float(float value) {
        const unsigned bits = __builtin_bit_cast(unsigned, value);
        if ((bits & 0x7fffffffu) > 0x7f800000u) {
            return (unsigned short) (bits >> 16 | 0x40u); // a quiet NaN stays one
        }
        return (unsigned short) ((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
};

struct __attribute__((aligned(4))) __hip_bfloat162 {
    __hip_bfloat16 x;
    __hip_bfloat16 y;

    __hip_bfloat162() = default;
    __host__ __device__ __hip_bfloat162(__hip_bfloat16 low, __hip_bfloat16 high) : x(low), y(high) {}
};

__host__ __device__ inline float __bfloat162float(__hip_bfloat16 value) { return (float) value; }
__host__ __device__ inline __hip_bfloat16 __float2bfloat16(float value) { return __hip_bfloat16(value); }
__host__ __device__ inline __hip_bfloat16 __low2bfloat16(__hip_bfloat162 pair) { return pair.x; }
__host__ __device__ inline __hip_bfloat16 __high2bfloat16(__hip_bfloat162 pair) { return pair.y; }
__host__ __device__ inline float2 __bfloat1622float2(__hip_bfloat162 pair) { return make_float2((float) pair.x, (float) pair.y); }
__host__ __device__ inline __hip_bfloat162 __float22bfloat162_rn(float2 pair) {
    return __hip_bfloat162(__hip_bfloat16(pair.x), __hip_bfloat16(pair.y));
}
