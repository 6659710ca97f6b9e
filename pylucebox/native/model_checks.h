// What upstream asserts instead of checking: with these values a damaged file would end the process.
#pragma once

#include "gguf.h"

#include <string>

namespace lucebox {

// A metadata value, 0 when the key is absent or of another type.
uint32_t read_u32(const gguf_context * file, const std::string & key);

// Throws LUCEBOX_ERR_FORMAT when the header of the file `path`, called `what` in messages, cannot be that of a model.
void require_sane_model(const gguf_context * file, const std::string & arch, const char * path, const char * what);

// The same for its tensors alone: later splits have hardly any metadata.
void require_sane_tensors(const gguf_context * file, const std::string & arch, const char * path, const char * what);

} // namespace lucebox
