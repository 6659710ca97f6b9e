"""A made-up engine with a made-up clock, for commands that are tested without the native library."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pylucebox._build import BuildInfo
from pylucebox._chat import ChatStep
from pylucebox._result import ChatCompletion, Completion, Step
from pylucebox._sidecar import SidecarVerdict
from pylucebox._spec import SpecReason, SpecState, spec_active, spec_inactive
from pylucebox._stats import StatsAccumulator
from pylucebox.cli._ports import EngineOptions
from pylucebox.cli._request import follow
from pylucebox.width import WidthCosts


def _text(tokens: Iterable[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


STEP_US = 1000.0
DRAFT_US = 500.0
ROW_US = 600.0


class Clock:
    """Seconds that pass only when somebody works."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def work(self, us: float) -> None:
        self.now_s += us / 1e6


@dataclass
class FakeEngine:
    """An engine that makes up tokens and charges the clock for them.

    With MTP it drafts ``width - 1`` tokens a cycle and accepts the first `n_held` of them.
    """

    options: EngineOptions
    clock: Clock
    n_held: int = 2
    broken_after: int | None = None  # with MTP, tokens from this index on are other ones
    fails_with: BaseException | None = None
    ends_at_once: bool = False
    slow_from_s: float = float("inf")  # the machine halves its speed at this time
    too_slow: bool = False  # to time its widths
    closed: bool = False
    calls: list[dict[str, Any]] = field(default_factory=list)
    cancelled: bool = False

    @property
    def drafts(self) -> bool:
        return self.options.mtp != "off" and self.options.verify_width != 1

    @property
    def spec(self) -> SpecState:
        return (
            spec_active("the MTP file fits") if self.drafts else spec_inactive(SpecReason.OFF_REQUESTED, "mtp is off")
        )

    @property
    def sidecar(self) -> SidecarVerdict:
        path = Path("made/up.gguf")
        return SidecarVerdict(model_path=path, reason_code=SpecReason.NO_SIDECAR, reason="nothing there")

    @property
    def info(self) -> Any:
        return SimpleNamespace(name="made-up", path="made/up.gguf")

    def _tokens(self, prompt: str, n: int, sampling: Any) -> list[int]:
        salt = "greedy" if sampling is None else f"{sampling.temperature}/{sampling.seed}"
        digest = hashlib.sha256(f"{salt}:{prompt}".encode("utf-8", "surrogateescape")).digest()
        tokens = [byte % 50 for byte in itertools.islice(itertools.cycle(digest), n)]
        if self.broken_after is not None and self.drafts:
            tokens[self.broken_after :] = [token + 100 for token in tokens[self.broken_after :]]
        return tokens

    def _charge(self, us: float) -> float:
        us *= 2.0 if self.clock.now_s >= self.slow_from_s else 1.0
        self.clock.work(us)
        return us

    def stream(
        self, prompt: str | Sequence[int], *, max_tokens: int = 256, stop: Any = (), sampling: Any = None
    ) -> Generator[Step, None, Completion]:
        if self.fails_with is not None:
            raise self.fails_with
        self.calls.append({"prompt": prompt, "max_tokens": max_tokens, "stop": stop, "sampling": sampling})
        tokens = self._tokens(str(prompt), 1 if self.ends_at_once else max_tokens, sampling)
        return self._steps(tokens, prompt, sampling)

    def _steps(
        self, tokens: list[int], prompt: str | Sequence[int], sampling: Any
    ) -> Generator[Step, None, Completion]:
        stats = StatsAccumulator()
        stats.add_prefill(n_tokens=len(prompt), wall_us=self._charge(2000.0))
        done, new, finish = 0, 1, "length"
        while new:
            if self.cancelled:
                self.cancelled, finish = False, "cancelled"
                break
            stats.add_delivered(new)
            done += new
            self.on_step(done)
            yield Step(text=_text(tokens[done - new : done]), token_ids=tuple(tokens[done - new : done]))
            new = self._cycle(stats, len(tokens) - done)
        return Completion(
            text=_text(tokens[:done]),
            token_ids=tuple(tokens[:done]),
            finish_reason=finish,
            stop_sequence=None,
            prompt_tokens=len(prompt),
            logprobs=None,
            stats=stats.snapshot(),
            spec=self.spec,
            seed=None if sampling is None else sampling.with_seed().seed,
        )

    def _cycle(self, stats: StatsAccumulator, n_left: int) -> int:
        """Run a cycle and return its new tokens; 0 when none are left."""
        if n_left == 0:
            return 0
        n_drafted = min(max(self.options.verify_width, 2), n_left) - 1 if self.drafts else 0
        n_accepted = min(self.n_held, n_drafted)
        draft_us, verify_us = DRAFT_US * n_drafted, STEP_US + ROW_US * n_drafted
        stats.add_cycle(
            n_tokens=n_accepted + 1,
            n_drafted=n_drafted,
            n_accepted=n_accepted,
            wall_us=self._charge(draft_us + verify_us),
            draft_us=draft_us,
            verify_us=verify_us,
        )
        return n_accepted + 1

    def measure_widths(self, n_past: int = 128) -> WidthCosts | None:
        self.calls.append({"measure": n_past})
        if self.fails_with is not None:
            raise self.fails_with
        if self.too_slow:
            return None
        verify = tuple(STEP_US + ROW_US * row for row in range(8))
        draft = tuple(DRAFT_US * n for n in range(1, 8))
        return WidthCosts(verify, draft, 5.0, 20.0, min(n_past, 2000), "sweep")

    def on_step(self, done: int) -> None:
        """Do nothing; tests put an interrupt here. `done` is the number of tokens so far."""

    def chat(self, messages: Iterable[dict[str, Any]], *, stream: bool = False, **options: Any) -> Any:
        enable_thinking = options.pop("enable_thinking", None)
        text = "|".join(str(message["content"]) for message in messages)
        if stream:
            return self._chat_stream(text, **options)
        steps = self._chat_stream(text, **options)
        self.calls[-1]["enable_thinking"] = enable_thinking
        return follow(steps, lambda _: None)

    def _chat_stream(self, text: str, **options: Any) -> Generator[ChatStep, None, ChatCompletion]:
        return self._chat_steps(self.stream(text, **options))

    def _chat_steps(self, steps: Generator[Step, None, Completion]) -> Generator[ChatStep, None, ChatCompletion]:
        try:
            while True:
                step = next(steps)
                yield ChatStep(text=step.text, token_ids=step.token_ids, delta=self.delta_of(step))
        except StopIteration as end:
            return self._reply(end.value)
        finally:
            steps.close()

    def delta_of(self, step: Step) -> dict[str, Any]:
        """Return the step's share of the message; tests make it reason or call tools here."""
        return {"content": step.text}

    @staticmethod
    def _reply(completion: Completion) -> ChatCompletion:
        fields = {name: getattr(completion, name) for name in Completion.__dataclass_fields__}
        return ChatCompletion(message={"role": "assistant", "content": completion.text}, **fields)

    def cancel(self) -> None:
        self.cancelled = True

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Factory:
    """Opens made-up engines and remembers them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.opened: list[FakeEngine] = []
        self.settings: dict[str, Any] = {}
        self.refuses_with: BaseException | None = None
        self.adjust: Callable[[FakeEngine], object] = lambda _engine: None

    def __call__(self, options: EngineOptions) -> FakeEngine:
        if self.refuses_with is not None:
            raise self.refuses_with
        self.opened.append(FakeEngine(options, self.clock, **self.settings))
        self.adjust(self.opened[-1])
        return self.opened[-1]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def factory(clock: Clock) -> Factory:
    return Factory(clock)


@pytest.fixture
def lucebox(factory: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run the command in an empty directory with the made-up engine; gives the exit status."""
    from pylucebox.cli.main import main

    monkeypatch.chdir(tmp_path)
    build = BuildInfo(version="1.2.3", upstream_build="b1", series_hash="abc")
    monkeypatch.setattr("pylucebox.cli.demo.recorded_build", lambda: build)
    return lambda *arguments: main(arguments, factory=factory)
