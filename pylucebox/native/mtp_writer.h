// The trunk's graph writes the K/V of the MTP block: what of it a session uses.
#pragma once

// Every prefix of the patch series builds, and the earlier ones have neither the interface nor who calls it.
#if __has_include("lucebox-mtp-writer.h")
#    include "lucebox-mtp-writer.h"
#else

#    include "llama.h"

#    include <memory>
#    include <string>

namespace lucebox {

class mtp_writer {
  public:
    virtual ~mtp_writer()                                                                   = default;
    virtual void   enable(llama_seq_id seq, bool on)                                        = 0;
    virtual void   defer(llama_seq_id seq, bool on)                                         = 0;
    virtual bool   get_hidden(llama_seq_id seq, llama_pos pos, float * out) const           = 0;
    virtual void   set_hidden(llama_seq_id seq, llama_pos pos, const float * hidden)        = 0;
    virtual size_t n_bytes() const                                                          = 0;
};

inline std::unique_ptr<mtp_writer> make_mtp_writer(llama_context *, llama_context *, std::string & why_not) {
    why_not = "this build's llama.cpp has no place for it";
    return nullptr;
}

} // namespace lucebox

#endif
