"""A gate for the HIP side of the GPU sources, for machines without a GPU and without ROCm.

CUDA sources are the HIP sources, so a change made and tried on an NVIDIA GPU can still fail to compile for gfx1151,
or need more registers there than there are. The gate compiles each source for the host and for gfx1151 with Debian's
clang, against Debian's HIP runtime headers and stand-ins of our own (`include/`) for the libraries and later additions
that ggml uses, and reads from the code object what the kernels need. It proves syntax, types, templates, resources and
instructions, not results; its objects are never run.
"""
