// Debian's header of half precision, behind it the functions that came later: the greater and the lesser of two, and shuffles.
#pragma once

#include <hip/hip_runtime.h> // ggml-common.h comes here first

#include_next <hip/hip_fp16.h>

__device__ inline __half __hmax(__half a, __half b) { return __hgt(a, b) ? a : b; }
__device__ inline __half __hmin(__half a, __half b) { return __hlt(a, b) ? a : b; }

#define LUCEBOX_HALF_SHUFFLE(name, lane_type)                                              \
    __device__ inline __half2 name(__half2 value, lane_type lane, int width = 32) {       \
        union { __half2 half2; int bits; } both;                                           \
        both.half2 = value;                                                                \
        both.bits  = name(both.bits, lane, width);                                         \
        return both.half2;                                                                 \
    }                                                                                      \
    __device__ inline __half name(__half value, lane_type lane, int width = 32) {         \
        union { __half half; unsigned short bits; } both;                                  \
        both.half = value;                                                                 \
        both.bits = (unsigned short) name((int) both.bits, lane, width);                   \
        return both.half;                                                                  \
    }

LUCEBOX_HALF_SHUFFLE(__shfl,      int)
LUCEBOX_HALF_SHUFFLE(__shfl_xor,  int)
LUCEBOX_HALF_SHUFFLE(__shfl_up,   unsigned)
LUCEBOX_HALF_SHUFFLE(__shfl_down, unsigned)

#undef LUCEBOX_HALF_SHUFFLE
