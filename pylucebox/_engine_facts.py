"""What can be asked of an engine without generating anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pylucebox._backends import system_info
from pylucebox._dispatch import Dispatch, back_end
from pylucebox._errors import InvalidArgumentError
from pylucebox._model import Model, ModelInfo
from pylucebox._native_session import NativeSession
from pylucebox._open import EngineOptions
from pylucebox._request import RequestRules, check_bool, check_callable, check_integer
from pylucebox._session import Progress
from pylucebox._session_options import SessionInfo
from pylucebox._sidecar import SidecarVerdict
from pylucebox._spec import SpecState
from pylucebox._stats import SpecStats
from pylucebox._turns import Turns
from pylucebox.calibration import (
    MIN_N_PAST,
    CostsWanted,
    SweepOptions,
    cost_key,
    default_store,
    find_costs,
    going_on,
    measure_costs,
)
from pylucebox.width import MAX_WIDTH, WidthCosts, WidthPolicy


class EngineFacts:
    """Properties of an engine, and its tokenizer. `Engine` sets the attributes."""

    _model: Model
    _session: NativeSession
    _rules: RequestRules
    _dispatch: Dispatch
    _sidecar: SidecarVerdict
    _stats: SpecStats
    _costs: WidthCosts | None
    _policy: WidthPolicy
    _turns: Turns
    _on_gpu: bool

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

    def measure_widths(self, n_past: int = 128, progress: Progress | None = None) -> WidthCosts | None:
        """Measure what verify steps of 1 to 8 rows and chains of drafts cost at a context length.

        Parameters
        ----------
        n_past
            Tokens in the context, at least 4; cut to what fits.
        progress
            Called with the fraction done; returning False ends the measurement.

        Returns
        -------
        WidthCosts or None
            None if it was ended by `progress`, by `cancel`, or because a step takes seconds.

        Raises
        ------
        InvalidArgumentError
            An argument is wrong, or the engine was opened for fewer than 8 rows or without drafts.
        DecodeError, OutOfMemoryError, ClosedError, SequenceStateError
            As for `stream`.
        """
        check_integer("n_past", n_past, MIN_N_PAST, 2**31 - 1)
        check_callable("progress", progress)
        if self._session.max_width < MAX_WIDTH:
            allowed = "an engine with drafts, opened with verify_width=0 or 8"
            raise InvalidArgumentError(argument="verify_width", value=self._session.max_width, allowed=allowed)
        with self._turns.hold():
            return self._of_device(measure_costs(self._session, SweepOptions(n_past=n_past), going_on(progress)))

    def _tell_costs(self, options: EngineOptions, wanted: CostsWanted, progress: Progress | None) -> WidthCosts | None:
        """Tell a policy that wants to know what widths cost; return that."""
        system = system_info()
        self._on_gpu = not back_end(system.backends, system.devices, options.device, options.n_gpu_layers).is_cpu
        load_costs = getattr(self._policy, "load_costs", None)
        if load_costs is None or options.verify_width != 0 or not self.spec.effective:
            return None
        if wanted == "auto":
            key = cost_key(options, self.info, self._session.n_threads, system)
            with self._turns.hold():
                found = find_costs(self._session, key, default_store(), lambda _: going_on(progress)(1.0))
            wanted = self._of_device(found)
        if wanted is not None:
            load_costs(wanted)
        elif (load_device := getattr(self._policy, "load_device", None)) is not None:
            load_device(on_gpu=self._on_gpu)
        return wanted

    def _of_device(self, costs: WidthCosts | None) -> WidthCosts | None:
        """Return these costs with what is known of the device that took the times."""
        return costs and replace(costs, on_gpu=self._on_gpu)
