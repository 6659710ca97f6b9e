"""What a session plans and measures: the contents of ``plan.json`` and ``runs.jsonl``.

The contents of ``summary.json`` are in `pylucebox.ab.results`. All numbers that can be unknown are None then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pylucebox.ab.codec import Record, sha256_of
from pylucebox.ab.results import SCHEMA

__all__ = [
    "BLOCK_TOKENS",
    "SCHEMA",
    "Arm",
    "CycleRecord",
    "Issue",
    "Plan",
    "PlannedRun",
    "Request",
    "RunRecord",
    "SequenceRecord",
    "Suite",
    "Workload",
]

BLOCK_TOKENS = 64
"""Tokens between two prefix hashes and two entries of `SequenceRecord.block_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Record):
    """One generation: a raw prompt that nobody puts into a chat template.

    Attributes
    ----------
    prompt
        The whole prompt; control tokens are read as such.
    max_tokens
        Tokens to produce.
    start_s
        Seconds after the start of the measured interval at which it is sent.
    temperature, top_k, top_p, seed
        Sampling; temperature 0 is greedy, and None leaves a setting at the engine's default.
    stop
        Strings that end the text.
    grammar
        GBNF grammar that the text follows; None for none. Only sampled requests can have one.
    n_prompt
        Tokens of the prompt as counted when the session was planned; None when not counted.
    """

    prompt: str
    max_tokens: int
    start_s: float = 0.0
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    stop: tuple[str, ...] = ()
    grammar: str | None = None
    n_prompt: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(Record):
    """What all arms run, text for text.

    Attributes
    ----------
    name
        Unique name; a version scaled to a smaller context has a name of its own.
    kind
        Kind of text, for example ``code``.
    title
        One line for people.
    requests
        One, or several that run together.
    warmup
        Request on other text that is run first and not measured.
    control
        Request that must give another digest than the first of `requests`, because its prompt or seed differs; None
        when the workload is too short for that to be certain.
    n_seq
        Sequences decoded together.
    n_ctx
        Tokens that each sequence must be able to hold.
    """

    name: str
    kind: str
    title: str
    requests: tuple[Request, ...]
    warmup: Request
    control: Request | None
    n_seq: int = 1
    n_ctx: int = 0

    @property
    def staggered(self) -> bool:
        """Whether requests start at different times."""
        return any(request.start_s > 0 for request in self.requests)

    @property
    def sha256(self) -> str:
        """SHA-256 of everything above, in hex."""
        return sha256_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite(Record):
    """The workloads of a session and where their text comes from.

    Attributes
    ----------
    name
        Name of the suite.
    workloads
        In running order.
    corpus
        Name of the corpus.
    corpus_sha256
        Its hash.
    n_ctx
        Tokens of a sequence that the workloads were sized to.
    """

    name: str
    workloads: tuple[Workload, ...]
    corpus: str
    corpus_sha256: str
    n_ctx: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm(Record):
    """A configuration under test.

    Attributes
    ----------
    name
        Name in tables.
    kind
        ``"engine"``: `pylucebox.Engine` in a process of ours; ``"server"``: a server that is started for each run;
        ``"url"``: a server that runs already.
    widths
        Verify widths it may use; empty when that cannot be known.
    options
        Keyword arguments of `pylucebox.Engine`.
    python, site
        Interpreter, and folder put first on its module path, of a second build.
    command
        Server's command line; ``{port}``, ``{model}`` and ``{sidecar}`` are filled in.
    url
        Base of a running server, for example ``http://127.0.0.1:8080``.
    api_model
        Model name that requests to a server carry.
    env
        Environment variables set for the process.
    """

    name: str
    kind: str
    widths: tuple[int, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    python: str | None = None
    site: str | None = None
    command: tuple[str, ...] = ()
    url: str | None = None
    api_model: str | None = None
    env: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """One line for tables."""
        if self.kind == "server":
            what = f"server {self.command[0].rpartition('/')[2]}"
        elif self.kind == "url":
            what = f"server at {self.url}"
        else:
            what = "engine, " + _width_words(self.widths)
        extra = [f"{key}={value}" for key, value in sorted(self.env.items())]
        extra += ["second build"] if self.python or self.site else []
        return "; ".join([what, *extra])

    def same_setting(self, other: Arm) -> bool:
        """Tell whether both are the same configuration under two names."""
        mine, theirs = self.as_dict(), other.as_dict()
        return {**mine, "name": ""} == {**theirs, "name": ""}


def _width_words(widths: tuple[int, ...]) -> str:
    if widths == (1,):
        return "MTP off"
    if len(widths) > 2:
        return "adaptive width"
    n_drafts = max(widths, default=1) - 1
    return f"{n_drafts} draft{'s' if n_drafts != 1 else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun(Record):
    """One run of the schedule.

    Attributes
    ----------
    index
        Place in the schedule, from 0.
    phase
        ``"settle"`` (an arm's first start, discarded), ``"sentinel"``, ``"aa"`` (baseline against itself),
        ``"control"`` (must give another digest) or ``"main"``.
    workload, arm
        Names.
    block
        Block within the phase; in it every arm runs once, or the baseline twice in phase ``"aa"``.
    position
        Place in the block, from 0.
    side
        0 or 1 in phase ``"aa"``: which of two identical arms it stands for; else 0.
    """

    index: int
    phase: str
    workload: str
    arm: str
    block: int = 0
    position: int = 0
    side: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Record):
    """Everything that was decided before the first run.

    Attributes
    ----------
    version
        Version of pylucebox.
    seed
        Seed of the schedule and of all resampling.
    order
        ``"abba"``, ``"random"`` or ``"williams"``.
    isolation
        ``"process"``: a fresh process for every run; ``"request"``: one for all workloads of an arm in a block.
    baseline
        Arm that the others are compared with.
    arms
        Baseline first.
    suite
        Workloads.
    n_pairs, n_aa
        Blocks of the main phase, and pairs of the baseline with itself, per workload.
    sentinel, sentinel_arm
        Short run, and the arm that repeats it through the session; None for no sentinel.
    sentinel_every
        Main runs between two sentinel runs.
    cooldown
        ``"none"``, seconds, or ``"temp:+C"``.
    equivalence
        Fraction within which speeds count as the same.
    detect
        Effect to be found, as a fraction; None when the number of pairs was given.
    max_hours
        Time after which no run is started.
    model, sidecar
        Paths; None for those of the built-in model.
    runs
        The schedule.
    n_resamples
        Bootstrap resamples.
    """

    version: str
    seed: int
    order: str
    isolation: str
    baseline: str
    arms: tuple[Arm, ...]
    suite: Suite
    n_pairs: int
    n_aa: int
    sentinel_every: int
    cooldown: str
    equivalence: float
    runs: tuple[PlannedRun, ...]
    sentinel: Workload | None = None
    sentinel_arm: Arm | None = None
    detect: float | None = None
    max_hours: float | None = None
    model: str | None = None
    sidecar: str | None = None
    n_resamples: int = 10_000
    schema: int = SCHEMA

    @property
    def sha256(self) -> str:
        """SHA-256 of the plan, in hex."""
        return sha256_of(self)

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """Compared (workload, arm), in the order of the table."""
        others = [arm.name for arm in self.arms if arm.name != self.baseline]
        return tuple((workload.name, arm) for workload in self.suite.workloads for arm in others)

    def arm(self, name: str) -> Arm:
        """Return an arm by its name."""
        every = self.arms if self.sentinel_arm is None else (*self.arms, self.sentinel_arm)
        return next(arm for arm in every if arm.name == name)

    def workload(self, name: str) -> Workload:
        """Return a workload by its name."""
        every = self.suite.workloads if self.sentinel is None else (*self.suite.workloads, self.sentinel)
        return next(workload for workload in every if workload.name == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleRecord(Record):
    """One draft-verify cycle.

    Attributes
    ----------
    t_ms
        Its end, milliseconds after the first token.
    seq
        Sequence.
    width, n_drafted, n_accepted, n_tokens
        Verified rows, drafts made, drafts that held, new tokens.
    draft_us, verify_us, rollback_us
        Times in microseconds.
    built
        Whether a graph was built.
    """

    t_ms: float
    seq: int
    width: int
    n_drafted: int
    n_accepted: int
    n_tokens: int
    draft_us: int
    verify_us: int
    rollback_us: int
    built: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue(Record):
    """Why a run does not count.

    Attributes
    ----------
    code
        A key of `pylucebox.ab.validity.CODES`.
    detail
        What was seen.
    """

    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRecord(Record):
    """One request of a run.

    Attributes
    ----------
    n_prompt, n_cached, n_tokens
        Prompt tokens, those of them that came from a cache (None when not told), and tokens produced.
    finish_reason
        Why it ended.
    token_sha256
        `pylucebox.token_digest` of the ids; None when a server does not tell them.
    prefix_sha256
        First 16 hex digits of that hash over the first 64, 128, ... tokens.
    text_sha256
        Hash of the text in UTF-8.
    prefill_ms, decode_ms
        On the engine's own clock; None when it does not tell.
    ttft_ms, decode_client_ms
        From sending to the first token, and from there to the last, on our clock.
    block_ms
        Our time from the first token to token 64, 128, ..., interpolated within a cycle.
    """

    n_prompt: int
    n_tokens: int
    finish_reason: str
    text_sha256: str
    ttft_ms: float
    decode_client_ms: float
    n_cached: int | None = None
    token_sha256: str | None = None
    prefix_sha256: tuple[str, ...] = ()
    prefill_ms: float | None = None
    decode_ms: float | None = None
    block_ms: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord(Record):
    """One line of ``runs.jsonl``: a run as it went.

    Attributes
    ----------
    index, phase, workload, arm, block, position, side
        Of the `PlannedRun`.
    attempt
        0, or 1 for the repetition of an invalid run.
    started_utc
        ISO time.
    wall_s
        Seconds of the whole run, process start included.
    issues
        Why it does not count; empty for a valid run.
    sequences
        One per request.
    decode_tok_s, client_tok_s
        Decode speed on the engine's clock and on ours; several sequences are summed.
    prefill_tok_s, ttft_ms
        Speed of the prompts, and the longest time to a first token.
    spec
        Counts and times of the cycles, summed over sequences, by the names of `pylucebox.SpecStats`.
    widths
        Verify width to number of cycles.
    diverged_at, diverged_seq
        First token that differs from the baseline of the block, and its sequence; None when none does.
    peak_rss_bytes, energy_j
        Peak memory of the process and energy of the package during the run; None when unknown.
    machine
        Temperature, clocks, load and memory ``before`` and ``after``.
    """

    index: int
    phase: str
    workload: str
    arm: str
    block: int
    position: int
    side: int
    started_utc: str
    wall_s: float
    attempt: int = 0
    issues: tuple[Issue, ...] = ()
    sequences: tuple[SequenceRecord, ...] = ()
    decode_tok_s: float | None = None
    client_tok_s: float | None = None
    prefill_tok_s: float | None = None
    ttft_ms: float | None = None
    spec: dict[str, Any] | None = None
    widths: dict[str, int] = field(default_factory=dict)
    diverged_at: int | None = None
    diverged_seq: int | None = None
    peak_rss_bytes: int | None = None
    energy_j: float | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def valid(self) -> bool:
        """Whether the run counts."""
        return not self.issues

    @property
    def text_key(self) -> str:
        """Hash of all texts of the run: token ids where known, else characters."""
        return sha256_of([sequence.token_sha256 or sequence.text_sha256 for sequence in self.sequences])
