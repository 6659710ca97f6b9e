// Loops that are compiled for several kinds of vectors: once for any machine that the library runs on, and where the
// compiler can, once for AVX2. The body is one function that is always inlined, each form a function that calls it. None
// of them contracts or reorders floats, so all give the same bits.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#    include <immintrin.h>
#    define LUCEBOX_X86_FORMS
#    define LUCEBOX_AVX2   __attribute__((target("avx2")))
#    define LUCEBOX_AVX512 __attribute__((target("avx2,avx512f,avx512vl,avx512dq,avx512bw")))
#    define LUCEBOX_INLINE inline __attribute__((always_inline))
#else
#    define LUCEBOX_INLINE inline
#endif

namespace lucebox {

enum class lanes { ANY, AVX2, AVX512 };

// The widest form that this processor runs.
inline lanes lanes_of_this_cpu() {
#ifdef LUCEBOX_X86_FORMS
    __builtin_cpu_init(); // this may run before the compiler's library is set up
    if (!__builtin_cpu_supports("avx2")) {
        return lanes::ANY;
    }
    const bool has_512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    return has_512 ? lanes::AVX512 : lanes::AVX2;
#else
    return lanes::ANY;
#endif
}

} // namespace lucebox
