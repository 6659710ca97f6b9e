// Part of libllama: the graph that makes all drafts of a chain, and whether a context can have it.
#pragma once

struct llama_context;

namespace lucebox {

// Why the MTP block of a context cannot make its drafts in one graph; empty if it can. See llama_set_mtp_chain().
const char * why_no_mtp_chain(const llama_context * ctx);

} // namespace lucebox
