// Debian's runtime header is of HIP 5.2; behind it what ggml uses of later ones.
#pragma once

#include_next <hip/hip_runtime.h>

#ifndef hipHostRegisterReadOnly
#define hipHostRegisterReadOnly 0x08
#endif

static inline hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event) {
    return hipStreamWaitEvent(stream, event, 0u);
}
