"""Every form of the loops that find candidates and winners has the result of the plain rule; a build shows only one."""

from __future__ import annotations

from pathlib import Path

from _programs import compiler_for, run_program

NATIVE = Path(__file__).resolve().parents[2] / "pylucebox" / "native"
FLAGS = ("-O2", "-ffp-contract=off", "-fno-trapping-math")
"""As the build compiles them (native/CMakeLists.txt)."""

PROGRAM = r"""
#include "gumbel_race.cpp"
#include "top_candidates.cpp"

#include <cstdio>
#include <random>

using namespace lucebox;

namespace {

struct form {
    const char * name;
    forms        race;
    kernels      top;
};

std::vector<form> forms_here() {
    std::vector<form> list = { { "any", { enter_any, enter_row_any }, IN_ANY } };
#ifdef LUCEBOX_X86_FORMS
    if (lanes_of_this_cpu() != lanes::ANY) {
        list.push_back({ "avx2", { enter_avx2, enter_row_avx2 }, IN_AVX2 });
    }
    if (lanes_of_this_cpu() == lanes::AVX512) {
        list.push_back({ "avx512", { enter_avx512, enter_row_avx512 }, IN_AVX2 });
    }
#endif
    return list;
}

std::mt19937 rng(11);

// Rows with ties, holes, peaks, all alike, nearly empty, far apart, in order, with what is no number.
std::vector<float> make_row(int kind) {
    std::normal_distribution<float> normal;
    std::vector<float>              row(kind % 2 ? 4096 : 1 + rng() % 5000);
    const float                     spread = 1.0f + (float) (rng() % 30) / 10;
    for (float & x : row) {
        x = spread * normal(rng);
    }
    for (size_t i = 0; i < row.size(); ++i) {
        switch (kind) {
            case 1: row[i] = std::round(row[i]); break;
            case 2: row[i] = rng() % 3 ? row[i] : -INFINITY; break;
            case 3: row[i] = 1.0f; break;
            case 4: row[i] = rng() % 50 ? -INFINITY : row[i]; break;
            case 5: row[i] *= 100; break;
            case 7: row[i] = rng() % 20 ? row[i] : NAN; break;
            case 8: row[i] += rng() % 500 ? 0.0f : 12.0f; break;
            default: break;
        }
    }
    if (kind == 6) {
        std::sort(row.begin(), row.end());
    }
    return row;
}

struct result {
    int64_t winner = -1;
    double  first  = -INFINITY;
    double  second = -INFINITY;

    bool operator==(const result & other) const {
        return winner == other.winner && first == other.first && second == other.second;
    }
};

result by_rule(const noise_place & at, const std::vector<float> & row, float scale, const std::vector<int32_t> & tokens,
               int places) {
    result found;
    int32_t token_of_winner = 0;
    for (size_t i = 0; i < row.size(); ++i) {
        const float logit = row[i] * scale;
        if (!(logit > -INFINITY)) { continue; }
        const uint32_t     token = (uint32_t) tokens[i];
        const philox_block words = noise_words(at.seed, at.position, at.draw, token / 4);
        const double       sum   = (double) logit + gumbel_of(words.word[token % 4]);
        if (sum > found.first || (sum == found.first && tokens[i] < token_of_winner)) {
            found.second    = found.first;
            found.first     = sum;
            found.winner    = (int64_t) i;
            token_of_winner = tokens[i];
        } else if (sum > found.second) {
            found.second = sum;
        }
    }
    found.second = places > 1 ? found.second : -INFINITY;
    return found;
}

result of(const gumbel_race & race, int places) {
    return { race.winner, race.first, places > 1 ? race.second : -INFINITY };
}

int fail(const char * what, const char * form, int kind) {
    std::printf("%s, form %s, row of kind %d: differs\n", what, form, kind);
    return 1;
}

int check(const form & with, int kind) {
    const std::vector<float> row = make_row(kind);
    const int64_t            n   = (int64_t) row.size();
    const noise_place        at  = { (uint32_t) rng(), (uint32_t) rng() % 1000, (uint32_t) rng() % 2 };
    const int                places = 1 + (int) (rng() % 2);
    const float              scale  = rng() % 2 ? 1.0f : 0.3f + (float) (rng() % 20) / 10;

    std::vector<int32_t> tokens(row.size());
    for (size_t i = 0; i < row.size(); ++i) {
        tokens[i] = (int32_t) i;
    }
    gumbel_race whole(at.seed, at.position, at.draw, places);
    with.race.enter_row(whole, row.data(), n, scale);
    if (!(of(whole, places) == by_rule(at, row, scale, tokens, places))) {
        return fail("row", with.name, kind);
    }
    // blocks of any length, of tokens that follow each other, or do not
    const bool apart = rng() % 2;
    for (size_t i = 1; i < row.size(); ++i) {
        tokens[i] = tokens[i - 1] + 1 + (apart ? (int32_t) (rng() % 3) : 0);
    }
    gumbel_race blocks(at.seed, at.position, at.draw, places);
    const int32_t longest = rng() % 2 ? token_block::SIZE : 1 + (int32_t) (rng() % token_block::SIZE);
    for (int64_t begin = 0; begin < n; begin += longest) {
        token_block block;
        block.n = (int32_t) std::min<int64_t>(longest, n - begin);
        for (int32_t i = 0; i < block.n; ++i) {
            block.logits[i] = row[(size_t) (begin + i)] * scale;
            block.tokens[i] = tokens[(size_t) (begin + i)];
        }
        block.pad();
        with.race.enter(blocks, block, begin);
    }
    if (!(of(blocks, places) == by_rule(at, row, scale, tokens, places))) {
        return fail("blocks", with.name, kind);
    }

    std::vector<candidate> all, found;
    for (int64_t i = 0; i < n; ++i) {
        if (row[(size_t) i] > -INFINITY) {
            all.push_back({ row[(size_t) i], (int32_t) i });
        }
    }
    std::sort(all.begin(), all.end(), is_before);
    const int64_t n_tops[] = { 1, 20, 40, 128, 256, 700, 1 + (int64_t) (rng() % 2000) };
    const int64_t n_top    = n_tops[rng() % 7];
    take_top_in(with.top, row.data(), n, n_top, found);
    const bool same = found.size() == std::min(all.size(), (size_t) n_top) &&
                      std::equal(found.begin(), found.end(), all.begin(), [](const candidate & a, const candidate & b) {
                          return a.logit == b.logit && a.row == b.row;
                      });
    return same ? 0 : fail("candidates", with.name, kind);
}

} // namespace

int main() {
    for (int round = 0; round < 500; ++round) {
        for (const form & with : forms_here()) {
            if (check(with, round % 10) != 0) {
                return 1;
            }
        }
    }
    return 0;
}
"""


def test_all_forms_find_what_the_rule_finds(tmp_path: Path) -> None:
    result = run_program(compiler_for(NATIVE), tmp_path, PROGRAM, *FLAGS, f"-I{NATIVE}")
    assert result.returncode == 0, result.stdout
