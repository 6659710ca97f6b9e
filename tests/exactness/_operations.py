"""Single operations of the CPU back end, called in the built libraries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import cffi
import numpy as np
import numpy.typing as npt
import pytest

from pylucebox._build import find_native_dir
from pylucebox._gguf_parse import TENSOR_TYPES
from pylucebox.testing._gguf_writer import encode

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]

TYPE_NUMBERS = {name: number for number, (name, *_) in TENSOR_TYPES.items()}

_API = """
struct ggml_init_params { size_t mem_size; void * mem_buffer; bool no_alloc; };
void * ggml_init(struct ggml_init_params params);
void ggml_free(void * ctx);
void * ggml_new_tensor_4d(void * ctx, int type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3);
void * ggml_mul_mat(void * ctx, void * a, void * b);
void * ggml_mul_mat_id(void * ctx, void * as, void * b, void * ids);
void * ggml_flash_attn_ext(void * ctx, void * q, void * k, void * v, void * mask, float scale, float max_bias,
                           float logit_softcap);
void * lucebox_flash_attn_cells(void * ctx, void * q, void * k, void * v, void * pools, void * pool_cells,
                                void * pool_ranges, void * tail, int32_t n_cells, float scale);
void * lucebox_index_scores(void * ctx, void * q, void * keys, void * weights, void * pool_ranges);
void * ggml_gated_delta_net(void * ctx, void * q, void * k, void * v, void * g, void * beta, void * state, int64_t n);
void * ggml_lightning_indexer(void * ctx, void * q, void * k, void * weights, void * mask);
void * ggml_ssm_conv(void * ctx, void * x, void * taps);
void * ggml_top_k(void * ctx, void * a, int k);
void * ggml_new_graph(void * ctx);
void ggml_build_forward_expand(void * graph, void * tensor);
size_t ggml_nbytes(void * tensor);
void * ggml_backend_alloc_ctx_tensors_from_buft(void * ctx, void * buft);
void ggml_backend_buffer_free(void * buffer);
void ggml_backend_tensor_set(void * tensor, const void * data, size_t offset, size_t size);
void ggml_backend_tensor_get(void * tensor, void * data, size_t offset, size_t size);
void * ggml_backend_get_default_buffer_type(void * backend);
void * ggml_backend_get_device(void * backend);
void * ggml_backend_dev_backend_reg(void * device);
void * ggml_backend_reg_get_proc_address(void * reg, const char * name);
bool ggml_backend_dev_supports_op(void * device, void * op);
const char * ggml_backend_buft_name(void * buft);
int ggml_backend_graph_compute(void * backend, void * graph);
void * ggml_backend_cpu_init(void);
void ggml_backend_cpu_set_n_threads(void * backend, int n_threads);
"""


class Operations:
    """The CPU back end with `n_threads`; `repack` puts weights into its own buffers where it has a layout for them."""

    def __init__(self, *, n_threads: int = 1, repack: bool = False) -> None:
        folder = find_native_dir() / "lib"
        self._ffi = cffi.FFI()
        self._ffi.cdef(_API)
        flags = os.RTLD_NOW | os.RTLD_GLOBAL
        self._base = self._ffi.dlopen(str(folder / "libggml-base.so"), flags)
        self._cpu = self._ffi.dlopen(str(folder / "libggml-cpu.so"), flags)
        self._backend = self._cpu.ggml_backend_cpu_init()
        self._device = self._base.ggml_backend_get_device(self._backend)
        self._cpu.ggml_backend_cpu_set_n_threads(self._backend, n_threads)
        self._default = self._base.ggml_backend_get_default_buffer_type(self._backend)
        self._weights = self._repack_buffer_type() if repack else self._default

    def _repack_buffer_type(self) -> Any:
        reg = self._base.ggml_backend_dev_backend_reg(self._device)
        found = self._base.ggml_backend_reg_get_proc_address(reg, b"ggml_backend_dev_get_extra_bufts")
        types = self._ffi.cast("void ** (*)(void *)", found)(self._device)
        i = 0
        while types[i] != self._ffi.NULL:
            if self._ffi.string(self._base.ggml_backend_buft_name(types[i])) == b"CPU_REPACK":
                return types[i]
            i += 1
        pytest.skip("this build has no repacked layouts")

    def product(self, weights: Floats, weight_type: str, rows: Floats) -> Floats:
        """Return ``rows @ weights.T``, shape (n_rows, n_out), with weights of a ggml type."""
        return self._run("ggml_mul_mat", [(weights, weight_type, True), (rows, "f32", False)])

    def expert_product(self, weights: Floats, weight_type: str, rows: Floats, experts: npt.NDArray[np.int32]) -> Floats:
        """Return each row times each of its experts, shape (n_rows, n_used, n_out).

        `weights` is (n_expert, n_out, n_in), `rows` (n_rows, 1, n_in), `experts` (n_rows, n_used).
        """
        inputs = [(weights, weight_type, True), (rows, "f32", False), (experts, "i32", False)]
        return self._run("ggml_mul_mat_id", inputs)

    def attention(self, q: Floats, k: Floats, v: Floats, cache_type: str, mask: Floats) -> Floats:
        """Return flash attention, shape (n_rows, n_head, dim).

        `q` is (n_head, n_rows, dim), `k` and `v` (n_head_kv, n_cells, dim), `mask` (n_rows, n_cells).
        """
        inputs = [(q, "f32", False), (k, cache_type, False), (v, cache_type, False), (mask, "f16", False)]
        return self._run("ggml_flash_attn_ext", inputs, float(q.shape[-1]) ** -0.5, 0.0, 0.0)

    def attention_to_cells(
        self, q: Floats, k: Floats, v: Floats, *, pools: Ids, pool_cells: Ids | None, pool_ranges: Ids, tail: Ids
    ) -> Floats:
        """Return flash attention over the cells that rows name, with F16 caches, shape (n_rows, n_head, dim).

        `pools` is (n_rows, n_top), `pool_cells` (n_pool, n_cells of a pool) or None, `pool_ranges` (n_rows, 3), the
        first pool that a row sees, how many, and where the cells of pool 0 would be, and `tail`
        (n_rows, n_cells of a pool - 1) with the number of cells in place of a cell that there is not.
        """
        inputs = [(q, "f32", False), (k, "f16", False), (v, "f16", False), (pools, "i32", False)]
        inputs += [(pool_cells, "i32", False), (pool_ranges, "i32", False), (tail, "i32", False)]
        return self._run("lucebox_flash_attn_cells", inputs, tail.shape[1] + 1, float(q.shape[-1]) ** -0.5)

    def delta_net(
        self, *, q: Floats, k: Floats, v: Floats, log_decay: Floats, beta: Floats, state: Floats, n_snapshots: int
    ) -> tuple[Floats, Floats]:
        """Return the outputs (n_tokens, n_head, dim) and the last `n_snapshots` states, newest first.

        `q` and `k` are (n_tokens, n_head_k, dim), `v` (n_tokens, n_head, dim), `log_decay` and `beta`
        (n_tokens, n_head, 1), `state` (n_head, dim, dim), with the weights of a value channel in each row.
        """
        inputs = [(values, "f32", False) for values in (q, k, v, log_decay, beta, state)]
        found = self._run("ggml_gated_delta_net", inputs, n_snapshots)
        n_written = min(n_snapshots, len(v))
        states = found[v.size : v.size + n_written * state.size]
        return found[: v.size].reshape(v.shape), states.reshape(n_written, *state.shape)

    def index_scores(self, q: Floats, keys: Floats, key_type: str, weights: Floats, mask: Floats) -> Floats:
        """Return the score of each key, shape (n_rows, n_keys).

        `q` is (n_rows, n_head, dim), `keys` (n_keys, 1, dim), `weights` (n_rows, n_head), `mask` (n_rows, n_keys).
        """
        inputs = [(q, "f32", False), (keys, key_type, False), (weights, "f32", False), (mask, "f16", False)]
        return self._run("ggml_lightning_indexer", inputs).reshape(mask.shape)

    def index_scores_in_ranges(self, q: Floats, keys: Floats, key_type: str, weights: Floats, ranges: Ids) -> Floats:
        """Return the same with `ranges` (n_rows, 3), the first key that a row sees, how many, and a number unread."""
        inputs = [(q, "f32", False), (keys, key_type, False), (weights, "f32", False), (ranges, "i32", False)]
        return self._run("lucebox_index_scores", inputs).reshape(len(q), len(keys))

    def convolution(self, x: Floats, taps: Floats) -> Floats:
        """Return the convolution of `x` (n_channels, n_rows + n_taps - 1) with `taps`, shape (n_rows, n_channels)."""
        return self._run("ggml_ssm_conv", [(x, "f32", False), (taps, "f32", False)]).reshape(-1, len(x))

    def top_k(self, values: Floats, k: int) -> npt.NDArray[np.int32]:
        """Return the indices of the `k` largest values of each row."""
        return self._run("ggml_top_k", [(values, "f32", False)], k).view(np.int32).reshape(len(values), k)

    def _run(self, operation: str, inputs: Sequence[tuple[Any, str, bool]], *params: float) -> Floats:
        base, ffi = self._base, self._ffi
        contexts = [base.ggml_init({"mem_size": 1 << 20, "mem_buffer": ffi.NULL, "no_alloc": True}) for _ in range(2)]
        tensors = []
        for values, type_name, is_weight in inputs:
            if values is None:
                tensors.append(ffi.NULL)
                continue
            shape = (*values.shape[::-1], 1, 1, 1)[:4]
            number = 26 if type_name == "i32" else TYPE_NUMBERS[type_name]  # GGML_TYPE_I32
            tensors.append(base.ggml_new_tensor_4d(contexts[is_weight], number, *shape))
        out = getattr(base, operation)(contexts[0], *tensors, *params)
        graph = base.ggml_new_graph(contexts[0])
        base.ggml_build_forward_expand(graph, out)

        types = (self._default, self._weights)
        buffers = [
            base.ggml_backend_alloc_ctx_tensors_from_buft(contexts[i], types[i])
            for i in range(2)
            if any(is_weight == bool(i) for _, _, is_weight in inputs)
        ]
        if not base.ggml_backend_dev_supports_op(self._device, out):
            pytest.skip(f"this processor has no repacked layout of {inputs[0][1]}")
        for tensor, (values, type_name, _) in zip(tensors, inputs, strict=True):
            if values is None:
                continue
            data = values.tobytes() if type_name == "i32" else encode(values, type_name)
            base.ggml_backend_tensor_set(tensor, data, 0, len(data))
        assert base.ggml_backend_graph_compute(self._backend, graph) == 0
        result = ffi.new("char[]", base.ggml_nbytes(out))
        base.ggml_backend_tensor_get(out, result, 0, len(result))
        for buffer in buffers:
            base.ggml_backend_buffer_free(buffer)
        for context in contexts:
            base.ggml_free(context)
        return np.frombuffer(ffi.buffer(result), np.float32).copy()
