"""What can be asked of an engine without generating anything."""

from __future__ import annotations

from collections.abc import Sequence

from pylucebox._dispatch import Dispatch
from pylucebox._model import Model, ModelInfo
from pylucebox._native_session import NativeSession
from pylucebox._request import RequestRules, check_bool
from pylucebox._session_options import SessionInfo
from pylucebox._sidecar import SidecarVerdict
from pylucebox._spec import SpecState
from pylucebox._stats import SpecStats
from pylucebox.width import WidthCosts


class EngineFacts:
    """Properties of an engine, and its tokenizer. `Engine` sets the attributes."""

    _model: Model
    _session: NativeSession
    _rules: RequestRules
    _dispatch: Dispatch
    _sidecar: SidecarVerdict
    _stats: SpecStats
    _costs: WidthCosts | None

    @property
    def spec(self) -> SpecState:
        """Whether drafts are made, and if not, why."""
        return self._rules.spec

    @property
    def dispatch(self) -> Dispatch:
        """Which path requests take, what it promises of the text, and why."""
        return self._dispatch

    @property
    def sidecar(self) -> SidecarVerdict:
        """Where an MTP block was looked for, what was found and what became of it."""
        return self._sidecar

    @property
    def info(self) -> ModelInfo:
        """What the model is."""
        return self._model.info

    @property
    def session_info(self) -> SessionInfo:
        """Sizes in force and memory in use."""
        return self._session.info

    @property
    def stats(self) -> SpecStats:
        """Figures of all requests so far."""
        return self._stats

    @property
    def width_costs(self) -> WidthCosts | None:
        """What widths cost, as the policy was told when the engine was opened; None if it was told nothing."""
        return self._costs

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Return the token ids of `text`.

        Parameters
        ----------
        text
            Any text.
        add_special
            Add the tokens that the model wants around a prompt.
        parse_special
            Read the text of control tokens as these tokens.

        Raises
        ------
        InvalidArgumentError
            `text` is not a string or holds lone surrogates, or a flag is neither True nor False.
        ClosedError
            The engine is closed.
        """
        check_bool("add_special", add_special)
        check_bool("parse_special", parse_special)
        return self._model.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of token ids; `special` shows control tokens, and broken characters show as U+FFFD.

        Raises
        ------
        InvalidArgumentError
            An id is outside the vocabulary, or `special` is neither True nor False.
        ClosedError
            The engine is closed.
        """
        check_bool("special", special)
        return self._model.detokenize(ids, special=special)
