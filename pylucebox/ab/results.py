"""What a session concludes: the contents of ``summary.json``."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pylucebox.ab.codec import Record

__all__ = [
    "SCHEMA",
    "ArmFigures",
    "Noise",
    "Pooled",
    "Row",
    "Sentinel",
    "Summary",
    "Verdict",
    "WorkloadSummary",
]

SCHEMA = 1
"""Version of the files of a session; raised when a reader of the old ones would go wrong."""


class Verdict(str, enum.Enum):
    """What a comparison shows."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    EQUIVALENT = "EQUIVALENT"
    UNRESOLVED = "UNRESOLVED"
    DIVERGED = "DIVERGED"
    INVALID = "INVALID"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmFigures(Record):
    """One arm on one workload, over its valid runs of the main phase.

    Attributes
    ----------
    arm
        Name.
    n_valid, n_invalid
        Runs.
    median_tok_s, min_tok_s, max_tok_s
        Decode speed, summed over sequences.
    median3_tok_s
        Median of the first three: descriptive, for comparison with figures published that way.
    prefill_tok_s, ttft_ms
        Medians.
    tokens_per_cycle
        Tokens of a cycle, over all runs.
    drafted, accepted
        Drafts, over all runs.
    conditional
        Per depth: how often a draft held when those before it did; None where nothing was drafted.
    survival
        Per depth: how often it and all before it held.
    width_histogram
        Verify width to cycles.
    peak_rss_bytes
        Largest.
    """

    arm: str
    n_valid: int
    n_invalid: int
    median_tok_s: float | None = None
    min_tok_s: float | None = None
    max_tok_s: float | None = None
    median3_tok_s: float | None = None
    prefill_tok_s: float | None = None
    ttft_ms: float | None = None
    tokens_per_cycle: float | None = None
    drafted: int = 0
    accepted: int = 0
    conditional: tuple[float | None, ...] = ()
    survival: tuple[float | None, ...] = ()
    width_histogram: dict[str, int] = field(default_factory=dict)
    peak_rss_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Record):
    """One arm against the baseline on one workload. Ratios above 1 mean that the arm is faster.

    Attributes
    ----------
    workload, arm
        Names.
    verdict
        A `Verdict`.
    reason
        Why, in one sentence.
    identity
        Whether the text is the same.
    ratio, low, high
        Median speed ratio of the pairs with its 95 % interval.
    low90, high90
        Interval that EQUIVALENT rests on.
    t_low, t_high
        95 % t interval of the mean, with fewer than 8 pairs only.
    p, p_holm
        Exact two-sided sign-flip test, raw and after Holm over the table.
    n_pairs
        Valid pairs.
    mde
        Effect that so many pairs with this scatter find in 80 % of sessions, as a fraction.
    diverged_at
        First differing token.
    clock
        ``"engine"`` or ``"client"``: whose decode times were compared.
    block_ratio
        Per 64 tokens: median over the pairs of baseline time over arm time.
    prefill_ratio, ttft_ratio
        Medians of baseline time over arm time.
    """

    workload: str
    arm: str
    verdict: str
    reason: str
    identity: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    low90: float | None = None
    high90: float | None = None
    t_low: float | None = None
    t_high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    n_pairs: int = 0
    mde: float | None = None
    diverged_at: int | None = None
    clock: str = "engine"
    block_ratio: tuple[float | None, ...] = ()
    prefill_ratio: float | None = None
    ttft_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled(Record):
    """One arm against the baseline over all workloads that can be compared.

    Attributes
    ----------
    arm, verdict, reason
        As in `Row`.
    ratio, low, high
        Geometric mean over workloads with its 95 % interval, workloads and pairs resampled.
    p, p_holm
        Sign-flip test over blocks, and after Holm over the arms.
    n_workloads, n_pairs
        What went in.
    """

    arm: str
    verdict: str
    reason: str
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    n_workloads: int = 0
    n_pairs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary(Record):
    """One workload.

    Attributes
    ----------
    workload, title, kind
        Of the `Workload`.
    figures
        Per arm, baseline first.
    rows
        Per arm but the baseline.
    control
        Whether the digest can fail: ``"digest changes"``, ``"INCONCLUSIVE: ..."`` or ``"not run"``.
    """

    workload: str
    title: str
    kind: str
    figures: tuple[ArmFigures, ...]
    rows: tuple[Row, ...]
    control: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise(Record):
    """What the baseline against itself shows.

    Attributes
    ----------
    n_pairs
        Pairs, over all workloads.
    ratio, low, high
        Median ratio with its 95 % interval.
    floor
        Size that the median of a row's pairs stays under in 95 % of cases although nothing differs, as a fraction.
    sigma_run
        Standard deviation of one run, as a fraction.
    """

    n_pairs: int
    ratio: float
    low: float
    high: float
    floor: float
    sigma_run: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentinel(Record):
    """The baseline's short run that was repeated through the session.

    Attributes
    ----------
    n
        Valid runs.
    spread
        Range of the running median of three, as a fraction.
    limit
        Range allowed: 1.5 times what the baseline or the sentinel against itself gives by chance.
    ok
        Whether the machine was steady enough.
    values
        Speeds in order, tok/s.
    """

    n: int
    spread: float
    limit: float
    ok: bool
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Record):
    """The conclusions of a session.

    Attributes
    ----------
    version, plan_sha256, environment_sha256
        What they belong to.
    complete
        Whether the whole schedule was run.
    stopped
        Why it was not; None when it was.
    isolation
        As planned. Results of ``"request"`` are for a quick look.
    n_runs, n_invalid
        Runs recorded, and those that do not count.
    wall_hours
        Sum of the runs' times.
    noise, sentinel
        None when they were not measured.
    workloads, pooled
        Results.
    verdict_counts
        Verdict to rows.
    exit_code
        0 nothing is wrong, 1 slower, 2 diverged, 3 unresolved, 4 invalid.
    notes
        What a reader must know, one sentence each.
    """

    version: str
    plan_sha256: str
    environment_sha256: str
    complete: bool
    isolation: str
    n_runs: int
    n_invalid: int
    wall_hours: float
    workloads: tuple[WorkloadSummary, ...]
    pooled: tuple[Pooled, ...]
    verdict_counts: dict[str, int]
    exit_code: int
    stopped: str | None = None
    noise: Noise | None = None
    sentinel: Sentinel | None = None
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA
