"""The runs of `lucebox exactness`: one request at every width, and token by token.

Decoding token by token has a session of its own, opened without drafts: no MTP block, no snapshots of recurrent state.
Both sessions share the model, so the weights are in memory once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pylucebox._backends import system_info
from pylucebox._dispatch import back_end
from pylucebox._errors import StrPath
from pylucebox._generate import Run
from pylucebox._model import Model
from pylucebox._native_session import NativeSession
from pylucebox._open import EngineOptions, open_engine, session_options
from pylucebox._request import RequestRules
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask, CycleTimes, MoreDrafts, Progress, Proposal, SeqCycle, Session
from pylucebox._sidecar import SidecarVerdict
from pylucebox._spec import SpecReason, SpecState, spec_inactive
from pylucebox.calibration import SweepOptions, measure_costs
from pylucebox.cli._exactness_prompts import Setting
from pylucebox.cli._exactness_verdict import WIDTHS, CaseVerdict, Drawn, Trace, compare, judge
from pylucebox.width import AdaptiveWidth, WidthPolicy, default_policy

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Case:
    """One request.

    Attributes
    ----------
    prompt
        Name of the prompt.
    setting
        Name of the sampler settings.
    tokens
        The prompt's token ids.
    sampling
        The settings, with a seed.
    """

    prompt: str
    setting: str
    tokens: Sequence[int]
    sampling: SamplingParams


@dataclass(frozen=True)
class WidthRun:
    """What a run at one width was like, without its logits.

    Attributes
    ----------
    width
        1 to 8, or 0 for adaptive.
    n_tokens
        Tokens compared.
    n_drafted, n_accepted, n_rollbacks
        As in `Trace`.
    same_tokens, same_bits
        Whether tokens, and whether tokens and all logits, are those of decoding token by token.
    """

    width: int
    n_tokens: int
    n_drafted: int
    n_accepted: int
    n_rollbacks: int
    same_tokens: bool
    same_bits: bool


@dataclass(frozen=True)
class CaseResult:
    """The runs of one request.

    Attributes
    ----------
    case
        The request.
    digest
        SHA-256 of the digests of all logits when decoding token by token, hex.
    runs
        One for each width, in the order of `WIDTHS`.
    verdict
        What they tell.
    """

    case: Case
    digest: str
    runs: tuple[WidthRun, ...]
    verdict: CaseVerdict


class Recorder:
    """A `Session` that passes everything on to another and keeps the logits of sequence 0.

    Attributes
    ----------
    drawn
        Tokens and logits since the last prefill.
    n_drafted, n_accepted, n_rollbacks, first_rollback
        As in `Trace`.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.n_ctx, self.n_seq, self.max_width = session.n_ctx, session.n_seq, session.max_width
        self._begin()

    def _begin(self) -> None:
        self.drawn: list[Drawn] = []
        self.n_drafted = self.n_accepted = self.n_rollbacks = 0
        self.first_rollback: int | None = None

    def open_sampler(self, params: SamplingParams, chat_json: str | None) -> Any:
        """Pass on."""
        return self._session.open_sampler(params, chat_json)

    def prefill(
        self, seq: int, tokens: Sequence[int], sampler: Any, *, use_mtp: bool, progress: Progress | None = None
    ) -> tuple[int, int]:
        """Pass on, and record the first token."""
        self._begin()
        token, finish = self._session.prefill(seq, tokens, sampler, use_mtp=use_mtp, progress=progress)
        self._record(seq, (token,))
        return token, finish

    def propose(self, asks: Sequence[MoreDrafts]) -> tuple[list[Proposal], int]:
        """Pass on."""
        return self._session.propose(asks)

    def cycle(self, asks: Sequence[Ask]) -> tuple[list[SeqCycle], CycleTimes]:
        """Pass on, and record what was drawn."""
        results, times = self._session.cycle(asks)
        for result in results:
            self._record(result.seq, result.tokens)
            self.n_drafted += result.n_drafted
            self.n_accepted += result.n_accepted
            if len(result.tokens) <= result.n_verified:
                self.n_rollbacks += 1
                if self.first_rollback is None:
                    self.first_rollback = len(self.drawn) - 1
        return results, times

    def _record(self, seq: int, tokens: Sequence[int]) -> None:
        for row, token in enumerate(tokens):
            logits = self._session.logits(seq, row)
            digest = hashlib.sha256(logits.tobytes()).hexdigest()
            self.drawn.append(Drawn(token, digest, logits, self.n_rollbacks))

    def n_past(self, seq: int) -> int:
        """Pass on."""
        return self._session.n_past(seq)

    def logits(self, seq: int, row: int) -> Any:
        """Pass on."""
        return self._session.logits(seq, row)

    def failure(self, seq: int) -> str:
        """Pass on."""
        return self._session.failure(seq)

    def clear(self, seq: int) -> None:
        """Pass on."""
        self._session.clear(seq)

    def abort(self) -> None:
        """Pass on."""
        self._session.abort()

    def abort_reset(self) -> None:
        """Pass on."""
        self._session.abort_reset()

    def close(self) -> None:
        """Pass on."""
        self._session.close()

    def trace(self, width: int) -> Trace:
        """Return what was recorded since the last prefill."""
        return Trace(
            width=width,
            drawn=tuple(self.drawn),
            n_drafted=self.n_drafted,
            n_accepted=self.n_accepted,
            n_rollbacks=self.n_rollbacks,
            first_rollback=self.first_rollback,
        )


class Bench:
    """Two sessions on one model, and requests run on them as an engine runs them.

    Parameters
    ----------
    plain
        Session without drafts.
    drafting
        Session with drafts.
    spec
        State of drafting in `drafting`.
    token_bytes
        Bytes of a token.
    policy
        Of adaptive runs, kept over all requests as an engine keeps it; None for the default, which knows no costs.
    """

    def __init__(
        self,
        plain: Session,
        drafting: Session,
        spec: SpecState,
        token_bytes: Callable[[int], bytes],
        policy: WidthPolicy | None = None,
    ) -> None:
        self._plain, self._drafting = plain, drafting
        self._spec = spec
        self._token_bytes = token_bytes
        self._policy: WidthPolicy = policy or default_policy()

    def reference(self, case: Case, max_tokens: int) -> Trace:
        """Decode token by token."""
        none = spec_inactive(SpecReason.OFF_REQUESTED, "one by one")
        return self._run(self._plain, none, case, 1, max_tokens)

    def trace(self, case: Case, width: int, max_tokens: int) -> Trace:
        """Decode at a width, 0 for adaptive, in the session with drafts."""
        return self._run(self._drafting, self._spec, case, width, max_tokens)

    def _run(self, session: Session, spec: SpecState, case: Case, width: int, max_tokens: int) -> Trace:
        rules = RequestRules(n_ctx=session.n_ctx, verify_width=width, max_width=session.max_width, spec=spec)
        request = rules.request(
            case.tokens,
            max_tokens=max_tokens,
            stop=(),
            sampling=case.sampling,
            logprobs=None,
            verify_width=width,
        )
        policy = self._policy if width == 0 else None
        if policy is not None:
            policy.begin(1, session.max_width)
        recorder = Recorder(session)
        session.clear(0)
        try:
            Run(request, recorder, 0, self._token_bytes, policy).drive()
        finally:
            session.clear(0)
        return recorder.trace(width)


def run_case(bench: Bench, case: Case, max_tokens: int, progress: Callable[[str], None]) -> CaseResult:
    """Run one request token by token and at every width, and compare.

    Parameters
    ----------
    bench
        Where to run.
    case
        The request.
    max_tokens
        Most tokens of each run.
    progress
        Called after each of ``1 + len(WIDTHS)`` runs.
    """
    reference = bench.reference(case, max_tokens)
    progress(f"{case.prompt}, {case.setting}")
    runs, divergences = [], []
    for width in WIDTHS:
        trace = bench.trace(case, width, max_tokens)
        found = compare(reference, trace)
        if found is not None:
            divergences.append(found)
        runs.append(
            WidthRun(
                width=width,
                n_tokens=len(trace.drawn),
                n_drafted=trace.n_drafted,
                n_accepted=trace.n_accepted,
                n_rollbacks=trace.n_rollbacks,
                same_tokens=found is None or found.token_index is None,
                same_bits=found is None,
            )
        )
        progress(f"{case.prompt}, {case.setting}")
    digest = hashlib.sha256("".join(drawn.digest for drawn in reference.drawn).encode()).hexdigest()
    return CaseResult(case, digest, tuple(runs), judge(divergences))


def _policy(options: EngineOptions, session: Session) -> WidthPolicy:
    """Return the policy that an engine would have.

    On a CPU it learns its costs as it goes, which makes it draft more of what is to be compared. On a GPU the first
    cycles of each width build and capture graphs, and it would hardly draft: there it is told.
    """
    policy = AdaptiveWidth()
    system = system_info()
    if back_end(system.backends, system.devices, options.device, options.n_gpu_layers).is_cpu:
        return policy
    costs = measure_costs(session, SweepOptions())
    if costs is None:
        policy.load_device(on_gpu=True)
    else:
        policy.load_costs(replace(costs, on_gpu=True))
    return policy


class OpenBench:
    """A bench on a real model.

    Parameters
    ----------
    options
        How to open; drafts are required, whatever `options` says of that.

    Raises
    ------
    LuceboxError
        The library, the model or the MTP file cannot be used, or there is none.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._opened = open_engine(options, None)
        self.model: Model = self._opened.model
        try:
            # the same chunk of a prompt: a GPU adds up in another order in chunks of another size
            plain = replace(
                session_options(options, self.model, max_width=1), n_ubatch=self._opened.session.info.n_ubatch
            )
            self._plain = NativeSession(self.model, plain)
        except BaseException:
            self.close()
            raise
        policy = _policy(options, self._opened.session)
        self.bench = Bench(self._plain, self._opened.session, self.spec, self.model.token_bytes, policy)

    @property
    def spec(self) -> SpecState:
        """State of drafting."""
        return self._opened.dispatch.spec

    @property
    def sidecar(self) -> SidecarVerdict:
        """Where the MTP block came from."""
        return self._opened.sidecar

    @property
    def n_ctx(self) -> int:
        """Tokens that a sequence can hold."""
        return self._opened.session.n_ctx

    def cases(self, planned: Iterable[tuple[str, str, Setting]]) -> Iterator[Case]:
        """Return requests from names, texts and settings."""
        for name, text, setting in planned:
            tokens = self.model.tokenize(text, add_special=True, parse_special=True)
            yield Case(name, setting.name, tokens, setting.sampling)

    def close(self) -> None:
        """Free sessions and model."""
        plain = getattr(self, "_plain", None)
        if plain is not None:
            plain.close()
        self._opened.session.close()
        self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def engine_options(model: StrPath, *, mtp: str, n_ctx: int | None, n_threads: int | None, device: str) -> EngineOptions:
    """Return the options of `OpenBench`, with the defaults of `Engine` for what the command has no flag for."""
    return EngineOptions(model=model, mtp=mtp, n_ctx=n_ctx, spec="require", n_threads=n_threads, device=device)
