// Rows of a pass that several sequences share; the same in the engine and in the server.
#pragma once

#include <cstdint>
#include <vector>

namespace lucebox {

// Rows of one pass, of all its sequences: up to that many, the back ends give each row the bits that it has alone.
constexpr int32_t MAX_PASS_ROWS = 8;

// What one sequence wants of a pass, and gets.
struct pass_share {
    int32_t width  = 1;     // rows to verify, at least 1
    int32_t widest = 1;     // rows that it can have
    bool    fixed  = false; // it verifies drafts of an earlier pass once more, neither more nor fewer
};

// Gives each sequence its rows. The recurrent layers take as many rows of each sequence at a time, so with unequal widths
// the whole model runs once for each. If `even`, all get the longest run that one of them is sure of, or what the shortest
// can have; unless one is fixed. Otherwise each gets what it wants as long as there are rows, the widest giving way first.
void share_rows(std::vector<pass_share> & shares, bool even);

} // namespace lucebox
