"""Philox in vectors of either width has the words of the plain one: a processor shows a build only one of them."""

from __future__ import annotations

from pathlib import Path

from _programs import compiler_for, run_program

NATIVE = Path(__file__).resolve().parents[2] / "pylucebox" / "native"
PROGRAM = r"""
#include "philox_lanes.h"
#include <cstdio>
#include <cstring>
using namespace lucebox;
int main() {
    for (uint32_t round = 0; round < 2000; ++round) {
        uint32_t groups[PHILOX_LANES], plain[4][PHILOX_LANES], made[4][PHILOX_LANES];
        for (uint32_t i = 0; i < PHILOX_LANES; ++i) {
            groups[i] = round * 2654435761u + i * 97u * round;
        }
        const noise_place at = { round * 77u - 1u, round ^ 0xFFFFFFF0u, round & 1u };
        philox_plain(at, groups, plain[0], PHILOX_LANES);
        philox_of_any_cpu(at, groups, made[0], PHILOX_LANES);
        if (std::memcmp(plain, made, sizeof(made)) != 0) { return std::printf("sse2 or plain differs\n"), 1; }
#ifdef LUCEBOX_X86_FORMS
        if (lanes_of_this_cpu() != lanes::ANY) {
            philox_avx2(at, groups, made[0], PHILOX_LANES);
            if (std::memcmp(plain, made, sizeof(made)) != 0) { return std::printf("avx2 differs\n"), 1; }
        }
        if (lanes_of_this_cpu() == lanes::AVX512) {
            philox_avx512(at, groups, made[0], PHILOX_LANES);
            if (std::memcmp(plain, made, sizeof(made)) != 0) { return std::printf("avx512 differs\n"), 1; }
        }
#endif
    }
    return 0;
}
"""


def test_all_forms_make_the_same_words(tmp_path: Path) -> None:
    result = run_program(compiler_for(NATIVE), tmp_path, PROGRAM, "-O2", f"-I{NATIVE}")
    assert result.returncode == 0, result.stdout
