"""Small random models for tests.

`write_tiny_model` writes a qwen4exp model of a few megabytes in a fraction of a second, with its MTP block inside or
beside it, in any tensor type. The text such a model writes is meaningless, but it depends on everything that came
before and its drafts are accepted at a realistic rate, so tests of exactness can fail for the right reason.

`write_f32_copy` and `read_f32` turn the tensors of a file into float32, for comparison with other implementations.
"""

from pylucebox.testing._dequantise import read_f32, write_f32_copy
from pylucebox.testing._language import END_RUN
from pylucebox.testing._tiny import K_QUANT_SPEC, REAL_WIDTHS, TinyModelFiles, TinySpec, write_tiny_model

__all__ = [
    "END_RUN",
    "K_QUANT_SPEC",
    "REAL_WIDTHS",
    "TinyModelFiles",
    "TinySpec",
    "read_f32",
    "write_f32_copy",
    "write_tiny_model",
]
