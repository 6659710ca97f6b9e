// Compiled into libllama, called from patched upstream code; see patches/mtp-file-layouts.patch.
#pragma once

#include <cstdint>

struct llama_model_loader;

namespace lucebox {

// Makes the standard layout of the MTP block at index `n_trunk` out of another one, in the loader's table of weights.
//
// Renames weights; joins a projection that is stored in two halves, through a temporary file; leaves a standard file
// and one that it does not recognise as they are, for the loader to accept or to refuse.
//
// Throws std::runtime_error when the halves do not fit together, a list of draft ids is damaged, queries, keys and values
// are in one tensor, or the temporary file cannot be written.
void adopt_mtp_layout(llama_model_loader & loader, uint32_t n_trunk, int64_t n_vocab);

// While an active one lives, MTP files are loaded by this thread without an LM head of their own: rows of it take its
// place, see draft_rows.h.
class without_own_head {
  public:
    explicit without_own_head(bool active);
    ~without_own_head();

    without_own_head(const without_own_head &)             = delete;
    without_own_head & operator=(const without_own_head &) = delete;

  private:
    const bool before;
};

} // namespace lucebox
