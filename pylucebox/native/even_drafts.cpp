#include "even_drafts.h"

#include <algorithm>

namespace lucebox {

void share_rows(std::vector<pass_share> & shares, bool even) {
    int32_t n_rows = 0;
    int32_t joint  = 1;
    int32_t bound  = MAX_PASS_ROWS / std::max<int32_t>(1, (int32_t) shares.size());
    bool    fixed  = false;
    for (const pass_share & share : shares) {
        n_rows += share.width;
        joint = std::max(joint, share.width);
        bound = std::min(bound, share.widest);
        fixed = fixed || share.fixed;
    }
    if (even && !fixed) {
        joint = std::max(1, std::min(joint, bound)); // they fit, or there are so many that one row each is all there is
        for (pass_share & share : shares) {
            share.width = joint;
        }
        return;
    }
    for (; n_rows > MAX_PASS_ROWS; --n_rows) {
        pass_share * widest = nullptr;
        for (pass_share & share : shares) {
            if (!share.fixed && share.width > 1 && (widest == nullptr || share.width > widest->width)) {
                widest = &share;
            }
        }
        if (widest == nullptr) {
            return;
        }
        widest->width -= 1;
    }
}

} // namespace lucebox
