"""Settings of the sampler chain, checked before anything native sees them."""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

from pylucebox._errors import InvalidArgumentError

__all__ = ["SAMPLER_NAMES", "SAMPLER_RNGS", "SamplingParams"]

SAMPLER_NAMES: Final = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
    "infill",
    "adaptive_p",
)
"""Samplers of llama.cpp b11434 by its own names. It ignores unknown ones with a warning; here they are an error."""

SAMPLER_RNGS: Final = ("mt19937", "gumbel")
"""Where the random numbers of draws can come from."""

# llama.cpp takes the highest 32-bit number for "draw a seed", so it cannot be a seed that someone chose.
_MAX_SEED: Final = 2**32 - 2

_MAX_INT: Final = 2**31 - 1
# Upstream allocates as many entries as these windows say, at once and per request.
_MAX_WINDOW: Final = 1_048_576


class _Range(NamedTuple):
    low: float
    high: float
    whole: bool = False
    above_low: bool = False  # the lower end itself is not allowed

    def describe(self) -> str:
        kind = "an integer" if self.whole else "a number"
        if self.above_low:
            return f"{kind} above {self.low:g}, at most {self.high:g}"
        return f"{kind} from {self.low:.10g} to {self.high:.10g}"

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.above_low and value == self.low)


_RANGES: Final[Mapping[str, _Range]] = {
    "n_prev": _Range(0, _MAX_WINDOW, whole=True),
    "min_keep": _Range(0, _MAX_INT, whole=True),
    "top_k": _Range(0, _MAX_INT, whole=True),
    "top_p": _Range(0, 1),
    "min_p": _Range(0, 1),
    "xtc_probability": _Range(0, 1),
    "xtc_threshold": _Range(0, 1),
    "typical_p": _Range(0, 1),
    "temperature": _Range(0, 100),
    "dynatemp_range": _Range(0, 100),
    "dynatemp_exponent": _Range(0, 100),
    "penalty_last_n": _Range(0, _MAX_WINDOW, whole=True),
    "penalty_repeat": _Range(0, 100, above_low=True),
    "penalty_freq": _Range(-100, 100),
    "penalty_present": _Range(-100, 100),
    "dry_multiplier": _Range(0, 100),
    "dry_base": _Range(0, 100),
    "dry_allowed_length": _Range(0, _MAX_WINDOW, whole=True),
    "dry_penalty_last_n": _Range(0, _MAX_WINDOW, whole=True),
    "adaptive_target": _Range(-1, 1),
    "adaptive_decay": _Range(0, 0.99),
    "mirostat": _Range(0, 2, whole=True),
    "mirostat_tau": _Range(0, 100),
    "mirostat_eta": _Range(0, 1),
    "top_n_sigma": _Range(-1, 100),
    "reasoning_budget_tokens": _Range(-1, _MAX_INT, whole=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn. Defaults are llama.cpp's; names are those of `lucebox_sampler_params`.

    Parameters
    ----------
    temperature
        0 is greedy: always the likeliest token. 0 to 100.
    top_k
        Keep the k likeliest tokens; 0 keeps all.
    top_p
        Keep the likeliest tokens that together reach this probability; 1 keeps all.
    min_p
        Keep tokens with at least this share of the likeliest one's probability; 0 keeps all.
    typical_p
        Locally typical sampling; 1 switches it off.
    top_n_sigma
        Keep logits within so many standard deviations of the highest; negative switches it off.
    xtc_probability, xtc_threshold
        Chance to drop all but the least likely token above the threshold. 0 to 1 each.
    dynatemp_range, dynatemp_exponent
        Let entropy move the temperature by up to the range; a range of 0 switches it off.
    penalty_last_n, penalty_repeat, penalty_freq, penalty_present
        Window in tokens (0 to 1048576) and strengths of the repetition penalties; 1, 0 and 0 switch them off.
    dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers
        DRY penalty for repeated sequences; a multiplier of 0 switches it off. None takes llama.cpp's breakers.
    adaptive_target, adaptive_decay
        Adaptive-p sampler; a negative target switches it off. The decay goes up to 0.99.
    mirostat, mirostat_tau, mirostat_eta
        Mirostat version (0 off, 1, 2), target entropy and learning rate.
    min_keep
        Fewest tokens that the filters leave.
    n_prev
        Tokens that the sampler remembers, 0 to 1048576.
    seed
        0 to 4294967294. None draws one for each request; the completion reports it.
    sampler_rng
        ``"gumbel"`` draws by the Gumbel-max rule, with noise that is a function of seed, position and token, which
        drafts can foresee; ``"mt19937"`` is llama.cpp's stream of random numbers. The distribution is the same. None
        takes ``"gumbel"`` where it can be had: mirostat and adaptive-p draw from streams of their own. The completion
        reports it.
    samplers
        Order of the chain, names from `SAMPLER_NAMES`; None takes llama.cpp's order.
    logit_bias
        Token id to a number that is added to its logit; ``-inf`` bans the token.
    ignore_eos
        Never draw an end token.
    grammar
        GBNF grammar that the text must follow.
    json_schema
        JSON schema that the text must follow, as text or as a mapping; it is kept as text. Excludes `grammar`.
    reasoning_budget_tokens
        Most tokens of reasoning in a chat; -1 sets no limit.

    Raises
    ------
    InvalidArgumentError
        A value is out of range, of the wrong type, NaN or infinite, or `grammar` and `json_schema` are both given.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    penalty_last_n: int = 64
    penalty_repeat: float = 1.0
    penalty_freq: float = 0.0
    penalty_present: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] | None = None
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    min_keep: int = 0
    n_prev: int = 64
    seed: int | None = None
    sampler_rng: str | None = None
    samplers: tuple[str, ...] | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    ignore_eos: bool = False
    grammar: str | None = None
    json_schema: str | Mapping[str, Any] | None = None
    reasoning_budget_tokens: int = -1

    def __post_init__(self) -> None:
        for name, allowed in _RANGES.items():
            self._set(name, _number(name, getattr(self, name), allowed))
        if self.seed is not None:
            self._set("seed", _number("seed", self.seed, _Range(0, _MAX_SEED, whole=True)))
        self._check_rng()
        if not isinstance(self.ignore_eos, bool):
            raise InvalidArgumentError(argument="ignore_eos", value=self.ignore_eos, allowed="True or False")
        self._set("samplers", _samplers(self.samplers))
        self._set("dry_sequence_breakers", _strings("dry_sequence_breakers", self.dry_sequence_breakers))
        self._set("logit_bias", _biases(self.logit_bias))
        if self.grammar is not None:
            _text("grammar", self.grammar)
        self._set("json_schema", _schema(self.json_schema))
        if self.grammar is not None and self.json_schema is not None:
            raise InvalidArgumentError(
                argument="json_schema", value=self.json_schema, allowed="grammar or json_schema, not both"
            )

    def _check_rng(self) -> None:
        allowed = f"{' or '.join(map(repr, SAMPLER_RNGS))}, or None"
        if self.sampler_rng == "gumbel" and (self.mirostat or "adaptive_p" in (self.samplers or ())):
            allowed = "None or 'mt19937' here: mirostat and adaptive-p draw from streams of their own"
        elif self.sampler_rng is None or self.sampler_rng in SAMPLER_RNGS:
            return
        raise InvalidArgumentError(argument="sampler_rng", value=self.sampler_rng, allowed=allowed)

    @classmethod
    def greedy(cls) -> SamplingParams:
        """Return the settings that always take the likeliest token."""
        return cls(temperature=0.0)

    @property
    def is_greedy(self) -> bool:
        """Whether the temperature is 0 and the random stream therefore has no say."""
        return self.temperature == 0

    def with_seed(self) -> SamplingParams:
        """Return these settings with a definite seed, drawn now if there is none.

        Call it once per request, and record the seed of the result so that the request can be repeated.
        """
        return self if self.seed is not None else dataclasses.replace(self, seed=secrets.randbelow(_MAX_SEED + 1))

    def require_drawable(self, n_vocab: int) -> None:
        """Raise InvalidArgumentError if `logit_bias` bans each of a model's `n_vocab` tokens."""
        if sum(bias == -math.inf and token < n_vocab for token, bias in self.logit_bias.items()) == n_vocab:
            allowed = "biases that leave at least one token to draw"
            raise InvalidArgumentError(argument="logit_bias", value=self.logit_bias, allowed=allowed)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the only writer; the instance is frozen for everyone else


def _number(name: str, value: object, allowed: _Range) -> float:
    """Return `value` as a plain int or float. NumPy scalars are numbers; bool is not one."""
    number = math.nan
    if not isinstance(value, bool):
        try:
            if allowed.whole and isinstance(value, Integral):
                number = int(value)
            elif not allowed.whole and isinstance(value, Real):
                number = float(value)
        except OverflowError:
            number = math.inf
    if not allowed.holds(number):  # false for NaN as well
        raise InvalidArgumentError(argument=name, value=value, allowed=allowed.describe())
    return number


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidArgumentError(argument=name, value=value, allowed="non-empty text without a NUL character")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        allowed = "text that UTF-8 can express, so without lone surrogates"
        raise InvalidArgumentError(argument=name, value=value, allowed=allowed) from error
    return value


def _strings(name: str, values: Sequence[str] | None) -> tuple[str, ...] | None:
    if values is None:
        return None
    if isinstance(values, str) or not isinstance(values, Sequence):  # text would fall apart into its letters
        raise InvalidArgumentError(argument=name, value=values, allowed="a sequence of strings, or None")
    return tuple(_text(name, value) for value in values)


def _samplers(names: Sequence[str] | None) -> tuple[str, ...] | None:
    checked = _strings("samplers", names)
    if checked is not None and (not checked or set(checked) - set(SAMPLER_NAMES) or len(set(checked)) < len(checked)):
        allowed = f"at least one of {', '.join(SAMPLER_NAMES)}, each at most once"
        raise InvalidArgumentError(argument="samplers", value=names, allowed=allowed)
    return checked


def _biases(biases: Mapping[int, float]) -> dict[int, float]:
    if not isinstance(biases, Mapping):
        raise InvalidArgumentError(argument="logit_bias", value=biases, allowed="a mapping of token id to number")
    token, bias = _Range(0, _MAX_INT, whole=True), _Range(-math.inf, 1e6)
    return {
        int(_number("logit_bias (token id)", key, token)): _number("logit_bias (bias)", value, bias)
        for key, value in biases.items()
    }


def _schema(schema: str | Mapping[str, Any] | None) -> str | None:
    if schema is None:
        return None
    allowed = "a JSON schema: a mapping, or the text of a JSON object"
    try:
        if isinstance(schema, str):
            parsed = json.loads(schema)
        else:
            parsed = schema
            schema = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(argument="json_schema", value=schema, allowed=f"{allowed} ({error})") from error
    if not isinstance(parsed, Mapping):
        raise InvalidArgumentError(argument="json_schema", value=schema, allowed=allowed)
    return _text("json_schema", schema)
