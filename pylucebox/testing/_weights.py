"""Weights that make a random model predictable and yet dependent on all of its state.

Each residual stream has three parts: a few *bias* channels that never change, *code* channels with a random code per
token, and *history* channels, the only ones that blocks write to. The LM head finds the likely successors by the code
of the last token and adds a random projection of the history, which so decides between them: an error in any
recurrent, convolution or cached state changes tokens soon after.

The draft block is made of the same parts. Its projection takes bias and code from the token and the history from the
hidden state of the trunk, which is one token old. So its drafts are good but not perfect, and less so with depth, as
those of a trained block.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from pylucebox.testing._language import Language, make_language
from pylucebox.testing._vocab import Vocabulary

if TYPE_CHECKING:
    from pylucebox.testing._tiny import TinySpec

Array: TypeAlias = "npt.NDArray[np.float32]"

# Shares of the mean square of an embedding row, which is 1.
_BIAS_ENERGY = 0.2
_CODE_ENERGY = 0.8

# Root mean square of a trunk stream at the end of the trunk, as measured; norms divide by it.
_STREAM_RMS = 1.25

# A mixer multiplies its normalised input by sigmoid(about 0).
_MIXER_GAIN = 0.5

# Gain of a matrix that takes a mixed stream (root mean square 0.5) to values of root mean square 1.
_UNIT = 2.0

# Logits: of a likely successor, of a forced one, of tokens the language never and only by force leads to.
_LIKELY, _FORCED, _BARRED, _HELD_BACK = 10.0, 25.0, -12.0, -6.0

# Blocks of the trunk move the history by this much, the draft block by less: its own view is a disturbance.
_TRUNK_OUTPUT, _DRAFT_OUTPUT = 0.5, 0.25


@dataclass(frozen=True)
class _Recipe:
    """How `TinySpec.kind` acts: strength of the far successor, deviation of the history's logits, draft block."""

    far: float
    history: float
    draft_knows: bool


_RECIPES = {
    "mixed": _Recipe(far=0.8, history=1.7, draft_knows=True),
    "agree": _Recipe(far=0.0, history=0.7, draft_knows=True),
    "random": _Recipe(far=0.8, history=1.7, draft_knows=False),
}


class WeightMaker:
    """Make the tensors of one model; shapes are in numpy order, rows first.

    Every tensor has a random stream of its own, keyed by seed and name, so the trunk is the same whatever the draft
    block is.

    Attributes
    ----------
    language
        Which token follows which.
    """

    def __init__(self, spec: TinySpec, vocab: Vocabulary) -> None:
        self._spec = spec
        self._n_vocab = len(vocab.tokens)
        self.language: Language = make_language(vocab, self._rng("language"))
        self._recipe = _RECIPES[spec.kind]
        self._n_bias = spec.n_embd // 32
        self._code = slice(self._n_bias, self._n_bias + spec.n_embd // 2)
        self._history = slice(self._code.stop, spec.n_embd)
        self._bias_level = (_BIAS_ENERGY * spec.n_embd / self._n_bias) ** 0.5

    def trunk(self) -> dict[str, Array]:
        """Return the tensors of the trunk."""
        spec = self._spec
        tensors = {"token_embd.weight": self._embedding(), "output.weight": self._head()}
        tensors |= self._mixer("output_hc")
        if spec.ple_layer is not None:
            name = "per_layer_token_embd.weight"
            tensors[name] = self._normal(name, (sum(spec.ple_head_rows), spec.ple_head_dim), 1.0)
        for layer in range(spec.n_layer):
            tensors |= self._block(layer, _TRUNK_OUTPUT)
        return tensors

    def draft_block(self) -> dict[str, Array]:
        """Return the tensors of the MTP block, without embedding and LM head."""
        spec = self._spec
        width = spec.n_embd
        block = f"blk.{spec.n_layer}."
        name = block + "nextn.eh_proj.weight"
        if self._recipe.draft_knows:
            project = np.zeros((width, 2 * width), np.float32)
            kept = np.arange(self._history.start)
            project[kept, kept] = 1
            history = np.arange(self._history.start, width)
            project[history, width + history] = _STREAM_RMS
        else:
            project = self._matrix(name, (width, 2 * width))
        tensors = self._block(spec.n_layer, _DRAFT_OUTPUT)
        tensors |= {
            name: project,
            block + "nextn.enorm.weight": self._gamma(block + "nextn.enorm.weight", width),
            block + "nextn.hnorm.weight": self._gamma(block + "nextn.hnorm.weight", width * spec.hc_count),
        }
        for name, array in self._mixer("output_hc").items():
            tensors[name.replace("output_hc", block + "nextn.hc_head")] = array
        return tensors

    # ---- embedding and head

    @cached_property
    def _codes(self) -> Array:
        codes = self._normal("codes", (self._n_vocab, self._code.stop - self._code.start), 1.0)
        unit: Array = codes / np.linalg.norm(codes, axis=1, keepdims=True)
        return unit

    def _embedding(self) -> Array:
        rows = np.zeros((self._n_vocab, self._spec.n_embd), np.float32)
        rows[:, : self._n_bias] = self._bias_level
        rows[:, self._code] = self._codes * (_CODE_ENERGY * self._spec.n_embd) ** 0.5
        return rows

    def _head(self) -> Array:
        gain = _MIXER_GAIN / _STREAM_RMS
        # what one unit of each part is worth when it reaches the head
        bias = gain * self._bias_level * self._n_bias
        code = gain * (_CODE_ENERGY * self._spec.n_embd) ** 0.5
        n_history = self._history.stop - self._history.start
        history = self._normal("history", (self._n_vocab, n_history), self._recipe.history / (gain * n_history**0.5))

        rows = np.zeros((self._n_vocab, self._spec.n_embd), np.float32)
        rows[:, : self._n_bias] = _BARRED / bias
        for pairs, strength in ((self.language.near, 1.0), (self.language.far, self._recipe.far)):
            for token, successor in pairs:
                rows[successor, : self._n_bias] = 0
                rows[successor, self._history] = history[successor]
                rows[successor, self._code] += self._codes[token] * (strength * _LIKELY / code)
        for token, successor in self.language.forced:
            rows[successor, : self._n_bias] = _HELD_BACK / bias
            rows[successor, self._code] = self._codes[token] * (_FORCED / code)
        return rows

    # ---- blocks

    def _block(self, layer: int, output: float) -> dict[str, Array]:
        block = f"blk.{layer}."
        tensors = self._mixer(block + "hc_attn", inject=True)
        if self._spec.is_full_attention(layer):
            tensors |= self._attention(block, output)
        else:
            tensors |= self._delta_net(block, output)
        if layer == self._spec.ple_layer:
            tensors |= self._ngram_embedding(block)
        tensors |= self._mixer(block + "hc_ffn", inject=True)
        return tensors | self._experts(block, output)

    def _attention(self, block: str, output: float) -> dict[str, Array]:
        spec = self._spec
        width, queries, keys = spec.n_embd, spec.head_dim * spec.n_head, spec.head_dim * spec.n_head_kv
        return {
            # per head: query, then gate
            (name := block + "attn_q.weight"): self._steady(name, 2 * queries, 0.5),
            (name := block + "attn_k.weight"): self._matrix(name, (keys, width), _UNIT),
            (name := block + "attn_v.weight"): self._matrix(name, (keys, width), _UNIT),
            (name := block + "attn_output.weight"): self._writer(name, queries, 5 * output),
            # above 1, so that attention is selective and a wrong cache row shows
            (name := block + "attn_q_norm.weight"): self._gamma(name, spec.head_dim, 1.5),
            (name := block + "attn_k_norm.weight"): self._gamma(name, spec.head_dim, 1.5),
            (name := block + "indexer.q_proj.weight"): self._index(name, spec.indexer_n_head),
            (name := block + "indexer.k_proj.weight"): self._index(name, 1),
            (name := block + "indexer.q_norm.weight"): self._gamma(name, spec.indexer_head_dim),
            (name := block + "indexer.k_norm.weight"): self._gamma(name, spec.indexer_head_dim),
        }

    def _delta_net(self, block: str, output: float) -> dict[str, Array]:
        spec = self._spec
        width, heads, inner = spec.n_embd, spec.ssm_dt_rank, spec.ssm_d_inner
        keys = spec.ssm_d_state * spec.ssm_n_group
        name = block + "attn_qkv.weight"
        # steady queries and gates read the state, not the token: the output changes slowly
        projections = [self._steady(name, keys, 0.3), self._matrix(name + ".kv", (keys + inner, width), _UNIT)]
        return {
            name: np.concatenate(projections),
            (name := block + "attn_gate.weight"): self._steady(name, inner, 0.5),
            (name := block + "ssm_conv1d.weight"): self._matrix(name, (2 * keys + inner, spec.ssm_d_conv)),
            # softplus(-2) times about -1: the state loses some 10 % per token
            (name := block + "ssm_dt.bias"): self._normal(name, (heads,), 0.5, -2),
            (name := block + "ssm_a"): -np.exp(self._normal(name, (heads,), 0.7)),
            (name := block + "ssm_beta.weight"): self._matrix(name, (heads, width), _UNIT),
            (name := block + "ssm_alpha.weight"): self._matrix(name, (heads, width), _UNIT),
            (name := block + "ssm_norm.weight"): self._gamma(name, spec.ssm_d_state),
            (name := block + "ssm_out.weight"): self._writer(name, inner, 1.6 * output),
        }

    def _ngram_embedding(self, block: str) -> dict[str, Array]:
        spec = self._spec
        wide = spec.n_embd * spec.hc_count
        return {
            (name := block + "ple_key.weight"): self._matrix(name, (wide, spec.n_embd)),
            (name := block + "ple_value.weight"): self._writer(name, spec.n_embd, 0.5),
            (name := block + "ple_norm_key.weight"): self._gamma(name, wide),
            (name := block + "ple_norm_query.weight"): self._gamma(name, wide),
            (name := block + "ple_norm_conv.weight"): self._gamma(name, wide),
            (name := block + "ple_conv1d.weight"): self._matrix(name, (wide, spec.ple_conv_kernel), 0.4),
        }

    def _experts(self, block: str, output: float) -> dict[str, Array]:
        spec = self._spec
        width, n_expert, n_ff, n_ff_shared = spec.n_embd, spec.n_expert, spec.n_ff_exp, spec.n_ff_shexp
        down = block + "ffn_down_exps.weight"
        return {
            (name := block + "ffn_gate_inp.weight"): self._matrix(name, (n_expert, width), _UNIT),
            (name := block + "ffn_gate_exps.weight"): self._matrix(name, (n_expert, n_ff, width), _UNIT),
            (name := block + "ffn_up_exps.weight"): self._matrix(name, (n_expert, n_ff, width), _UNIT),
            down: np.stack([self._writer(f"{down}.{e}", n_ff, 0.5 * output) for e in range(n_expert)]),
            (name := block + "ffn_gate_inp_shexp.weight"): self._matrix(name, (width,), _UNIT),
            (name := block + "ffn_gate_shexp.weight"): self._matrix(name, (n_ff_shared, width), _UNIT),
            (name := block + "ffn_up_shexp.weight"): self._matrix(name, (n_ff_shared, width), _UNIT),
            (name := block + "ffn_down_shexp.weight"): self._writer(name, n_ff_shared, 0.5 * output),
        }

    def _mixer(self, prefix: str, *, inject: bool = False) -> dict[str, Array]:
        spec = self._spec
        wide, rank = spec.n_embd * spec.hc_count, spec.hc_low_rank
        tensors = {
            (name := prefix + "_norm.weight"): self._gamma(name, wide),
            (name := prefix + "_down.weight"): self._matrix(name, (rank, wide)),
            (name := prefix + "_up.weight"): self._matrix(name, (wide, rank), 4.0),
        }
        if inject:
            name = prefix + "_inject.weight"
            rows = self._matrix(name, (spec.hc_count, wide), 2.0)
            # streams differ in size, as the two readings of the draft block's hidden norm need to be told apart
            lean = np.linspace(-1.5, 1.5, spec.hc_count, dtype=np.float32) / (self._n_bias * self._bias_level)
            rows.reshape(spec.hc_count, spec.hc_count, spec.n_embd)[:, :, : self._n_bias] += lean[:, None, None]
            tensors[name] = rows
        return tensors

    # ---- kinds of tensors

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self._spec.seed, zlib.crc32(name.encode())])

    def _normal(self, name: str, shape: tuple[int, ...], deviation: float, mean: float = 0.0) -> Array:
        values: Array = self._rng(name).standard_normal(shape, np.float32) * np.float32(deviation) + np.float32(mean)
        return values

    def _matrix(self, name: str, shape: tuple[int, ...], gain: float = 1.0) -> Array:
        """Take inputs of root mean square 1 to outputs of root mean square `gain`."""
        return self._normal(name, shape, gain / shape[-1] ** 0.5)

    def _gamma(self, name: str, size: int, mean: float = 1.0) -> Array:
        """Weights of a norm, the one that converters add already in."""
        return self._normal(name, (size,), 0.05, mean)

    def _writer(self, name: str, n_in: int, gain: float) -> Array:
        """Make a projection back to the streams that leaves bias and code alone."""
        rows = self._matrix(name, (self._spec.n_embd, n_in), gain)
        rows[: self._history.start] = 0
        return rows

    def _steady(self, name: str, n_out: int, sway: float) -> Array:
        """Make a projection that mostly sees the bias; `sway` is the share the token keeps."""
        rows = self._matrix(name, (n_out, self._spec.n_embd), _UNIT * sway)
        rows[:, : self._n_bias] = self._matrix(name + ".bias", (n_out, self._n_bias))
        return rows

    def _index(self, name: str, n_head: int) -> Array:
        """Make an index projection whose scores are nearly always positive.

        The score is rectified. With scores of both signs many blocks would tie at zero, and which of them is selected
        would hang on the order in which a kernel looks at them.
        """
        spec = self._spec
        rows = self._matrix(name, (n_head, spec.indexer_head_dim, spec.n_embd), _UNIT)
        # rotation would turn a common component round with the position, so it goes to the channels left alone
        rows[:, spec.n_rot :, : self._n_bias] += 1.0 / self._n_bias
        return rows.reshape(-1, spec.n_embd)
