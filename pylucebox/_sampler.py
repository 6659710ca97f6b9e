"""From checked sampling settings to a native sampler."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pylucebox import _ffi
from pylucebox._errors import ClosedError
from pylucebox._model import Model
from pylucebox._sampling import SAMPLER_RNGS, SamplingParams

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# These need more than an assignment.
_SPECIAL = frozenset(
    {"seed", "sampler_rng", "samplers", "dry_sequence_breakers", "logit_bias", "grammar", "json_schema"}
)


class NativeSampler:
    """A request's sampler chain with its random stream. One session takes it over for one generation.

    Parameters
    ----------
    model
        Model whose tokens are drawn.
    params
        Settings; the seed must be set.
    chat_json
        What `Model.chat_render` returned, which brings grammar and triggers of the chat template; None outside chats.

    Raises
    ------
    InvalidArgumentError
        The grammar or schema cannot be read, a biased token is outside the vocabulary, or every token is banned.
    """

    def __init__(self, model: Model, params: SamplingParams, chat_json: str | None = None) -> None:
        ffi, lib = _ffi.native()
        params.require_drawable(model.info.n_vocab)
        grammar = params.grammar
        if params.json_schema is not None:
            grammar = model.grammar_of_schema("json_schema", str(params.json_schema))
        c_params = ffi.new("lucebox_sampler_params *")
        lib.lucebox_sampler_params_init(c_params)
        for name in SamplingParams.__dataclass_fields__:
            if name not in _SPECIAL:
                setattr(c_params, name, getattr(params, name))
        c_params.seed = params.seed or 0
        c_params.sampler_rng = 0 if params.sampler_rng is None else 1 + SAMPLER_RNGS.index(params.sampler_rng)
        bias = ffi.new("lucebox_logit_bias[]", list(params.logit_bias.items()))
        c_params.logit_bias, c_params.n_logit_bias = bias, len(bias)
        samplers = None if params.samplers is None else ";".join(params.samplers)
        breakers = None if params.dry_sequence_breakers is None else json.dumps(params.dry_sequence_breakers)
        texts = {"samplers": samplers, "dry_sequence_breakers": breakers, "grammar": grammar, "chat_json": chat_json}
        kept = {name: ffi.new("char[]", text.encode()) for name, text in texts.items() if text is not None}
        for name, text in kept.items():
            setattr(c_params, name, text)
        out = ffi.new("lucebox_sampler **")
        with model.handle as handle:
            status = lib.lucebox_sampler_open(handle, c_params, out)
        _ffi.check(status, "cannot set up the sampler", argument="sampling", value=grammar or params)
        self._pointer = ffi.gc(out[0], _ffi.unless_forked(lib.lucebox_sampler_close))

    @property
    def rng(self) -> str:
        """Where its random numbers come from, one of `SAMPLER_RNGS`."""
        return SAMPLER_RNGS[_ffi.native().lib.lucebox_sampler_rng(self._pointer) - 1]

    def draw(self, logits: npt.NDArray[np.float32], n: int, *, whole: bool = False) -> list[int]:
        """Draw `n` tokens one after the other, each from these logits, without the grammar; for tests.

        Parameters
        ----------
        logits
            Shape (n_vocab,).
        n
            Tokens to draw.
        whole
            Give the chain all logits, as upstream does, and not only those that it has to see.

        Raises
        ------
        InvalidArgumentError
            The logits are not as many as the vocabulary has tokens.
        """
        ffi, lib = _ffi.native()
        tokens = ffi.new("int32_t[]", n)
        values = ffi.new("float[]", logits.tolist())
        status = lib.lucebox_sampler_draw(self._pointer, values, len(values), whole, n, tokens)
        _ffi.check(status, "cannot draw", argument="logits", value=len(values))
        return list(ffi.unpack(tokens, n)) if n else []

    def describe(self) -> str:
        """Return the chain as upstream prints it."""
        native = _ffi.native()
        out = native.ffi.new("char **")
        _ffi.check(native.lib.lucebox_sampler_describe(self._pointer, out), "cannot describe the sampler")
        return _ffi.take_string(native, out)

    def release(self) -> Any:
        """Hand the native sampler over to a native call that takes it.

        Raises
        ------
        ClosedError
            It was handed over before.
        """
        if self._pointer is None:
            raise ClosedError(what="sampler")
        pointer, self._pointer = self._pointer, None
        _ffi.native().ffi.gc(pointer, None)  # in place: the destructor no longer runs
        return pointer


def gumbel_noise(seed: int, position: int, n: int, *, draw: int = 0) -> list[float]:
    """Return the noise that ``sampler_rng="gumbel"`` adds to the logits of tokens 0 to n - 1; for tests and drawings.

    Parameters
    ----------
    seed
        Of the request.
    position
        Place of the token to be drawn, counted from the start of the prompt.
    n
        Tokens.
    draw
        1 for the draw that follows one which a grammar refused.
    """
    ffi, lib = _ffi.native()
    out = ffi.new("double[]", n)
    lib.lucebox_gumbel_noise(seed, position, draw, n, out)
    return list(ffi.unpack(out, n)) if n else []
