"""What the commands need of an engine, and how they get one."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, overload

from pylucebox._chat import ChatStep
from pylucebox._dispatch import Dispatch
from pylucebox._drafting import DEFAULT_DRAFT_VOCAB
from pylucebox._engine import Engine
from pylucebox._model import ModelInfo
from pylucebox._result import ChatCompletion, Completion, Step
from pylucebox._sampling import SamplingParams
from pylucebox._sidecar import SidecarVerdict
from pylucebox._spec import SpecState
from pylucebox.width import WidthCosts


class EngineLike(Protocol):
    """The part of `pylucebox.Engine` that the commands use."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def spec(self) -> SpecState: ...

    @property
    def dispatch(self) -> Dispatch: ...

    @property
    def sidecar(self) -> SidecarVerdict: ...

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int = ...,
        stop: str | Sequence[str] = ...,
        sampling: SamplingParams | None = ...,
    ) -> Generator[Step, None, Completion]: ...

    @overload
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        enable_thinking: bool | None = ...,
        stream: Literal[False] = ...,
        max_tokens: int = ...,
        stop: str | Sequence[str] = ...,
        sampling: SamplingParams | None = ...,
    ) -> ChatCompletion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        enable_thinking: bool | None = ...,
        stream: Literal[True],
        max_tokens: int = ...,
        stop: str | Sequence[str] = ...,
        sampling: SamplingParams | None = ...,
    ) -> Generator[ChatStep, None, ChatCompletion]: ...

    def measure_widths(self, n_past: int = ...) -> WidthCosts | None: ...

    def cancel(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> EngineLike: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


@dataclass(frozen=True)
class EngineOptions:
    """How to open an engine.

    Attributes
    ----------
    model
        Path of the model; None is the built-in one.
    mtp, verify_width, spec, n_ctx, n_threads, device, draft_vocab, width_costs
        As `pylucebox.Engine` takes them.
    """

    model: str | None = None
    mtp: str = "auto"
    verify_width: int = 0
    spec: str = "auto"
    n_ctx: int | None = None
    n_threads: int | None = None
    device: str = "auto"
    draft_vocab: int | str = DEFAULT_DRAFT_VOCAB
    width_costs: Literal["auto"] | None = "auto"


class EngineFactory(Protocol):
    """Opens an engine."""

    def __call__(self, options: EngineOptions) -> EngineLike: ...


def open_engine(options: EngineOptions) -> EngineLike:
    """Open a real engine.

    Raises
    ------
    LuceboxError
        The library, the model or the MTP file cannot be used.
    """
    settings: dict[str, Any] = {
        "mtp": options.mtp,
        "verify_width": options.verify_width,
        "spec": options.spec,
        "n_ctx": options.n_ctx,
        "n_threads": options.n_threads,
        "device": options.device,
        "draft_vocab": options.draft_vocab,
        "width_costs": options.width_costs,
    }
    return Engine.demo(**settings) if options.model is None else Engine(options.model, **settings)
