// Copies grids of many shapes and strides, each in memory of just its size, and compares with a copy value by value.
// Prints how many differ, and how many values were written that belong to nobody.
#include "strided-copies.cpp"

#include <cstdio>
#include <random>
#include <vector>

namespace {

constexpr int32_t NOBODY = -1;

std::mt19937 numbers(1);

int64_t below(int64_t n) {
    return (int64_t) (numbers() % (uint32_t) n);
}

// Strides of a tensor whose dimensions lie in memory in this order, `gap` values apart.
std::vector<size_t> strides(const int64_t * ne, const int * order, int64_t gap) {
    std::vector<size_t> nb(4);
    size_t              next = sizeof(int32_t);
    for (int i = 0; i < 4; ++i) {
        nb[order[i]] = next;
        next         = next*ne[order[i]] + (i == 0 ? gap*sizeof(int32_t) : 0);
    }
    return nb;
}

size_t n_values(const int64_t * ne, const std::vector<size_t> & nb) {
    size_t last = 0;
    for (int i = 0; i < 4; ++i) {
        last += (ne[i] - 1)*nb[i];
    }
    return last/sizeof(int32_t) + 1;
}

} // namespace

int main() {
    const int orders[][4] = { { 0, 1, 2, 3 }, { 1, 0, 2, 3 } };
    int       n_wrong = 0, n_stray = 0;
    for (int round = 0; round < 4000; ++round) {
        const int64_t ne[4] = { 1 + below(round % 8 == 0 ? 70 : 20), 1 + below(40), 1 + below(3), 1 + below(2) };
        const auto src_nb = strides(ne, orders[below(2)], below(3)*below(9));
        const auto dst_nb = strides(ne, orders[0], below(2)*below(9));

        std::vector<int32_t> src(n_values(ne, src_nb));
        for (size_t i = 0; i < src.size(); ++i) {
            src[i] = (int32_t) i;
        }
        std::vector<int32_t> dst(n_values(ne, dst_nb), NOBODY), wanted(dst);
        for (int64_t i3 = 0; i3 < ne[3]; ++i3) {
            for (int64_t i2 = 0; i2 < ne[2]; ++i2) {
                for (int64_t i1 = 0; i1 < ne[1]; ++i1) {
                    for (int64_t i0 = 0; i0 < ne[0]; ++i0) {
                        const auto at = [&](const std::vector<size_t> & nb) {
                            return (i0*nb[0] + i1*nb[1] + i2*nb[2] + i3*nb[3])/sizeof(int32_t);
                        };
                        wanted[at(dst_nb)] = src[at(src_nb)];
                    }
                }
            }
        }
        const int n_threads = 1 + (int) below(3);
        for (int thread = n_threads - 1; thread >= 0; --thread) { // the last part first: no part may touch another
            ggml_compute_params params = {};
            params.ith                 = thread;
            params.nth                 = n_threads;
            copy(&params, { ne, (const char *) src.data(), src_nb.data(), (char *) dst.data(), dst_nb.data() });
        }
        for (size_t i = 0; i < dst.size(); ++i) {
            n_wrong += wanted[i] != NOBODY && dst[i] != wanted[i];
            n_stray += wanted[i] == NOBODY && dst[i] != NOBODY;
        }
    }
    std::printf("%d %d\n", n_wrong, n_stray);
    return 0;
}
