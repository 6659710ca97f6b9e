#!/usr/bin/env python3
"""Measure the draft phase of a model with the real widths: one launch and rows of the LM head, against upstream's way.

The model is random and has the widths of Qwen3.8-Flash-Next, 4 blocks and the MTP block (``real_widths.py``). A draft
reads 10 experts whatever their number is, so that number is what memory allows. Each of the five processes has its own
copy of the repacked weights: 2 GiB each with 64 experts of q4_K, and a run of the defaults takes about five minutes.

Processes keep the model open and take turns, each round in another order, from the same state: drafts in one launch
from 64,000 rows (``chain``); the same again, which says what noise is; in one launch from the whole head (``whole
head``); a launch for each draft, picked on the host from the whole head, which is upstream's loop (``steps``); and that
with the CPU back end of an unpatched build (``stock``). Times are those of the draft phase alone. Ratios are medians
over the rounds with 95 % bootstrap intervals.

    python scripts/draft_costs.py --stock PATH/libggml-cpu.so [--experts 64] [--type q4_K] [--threads 1] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from measuring_process import MeasuringProcess, package_env
from real_widths import write_model
from verify_costs import Ratio, copy_package, ratio

from pylucebox._draft_vocab import choose_draft_ids
from pylucebox._gguf import read_model
from pylucebox.cli._table import Table, print_table

N_DRAFTS = (1, 3, 7)
N_PROMPT = 256
N_DRAFT_VOCAB = 64_000

# ---- one arm, in a process of its own


@dataclass(frozen=True)
class Way:
    """How an arm drafts."""

    chained: bool
    rows_only: bool


def serve() -> None:
    """Answer the requests of `Arm` on standard input until it ends."""
    from pylucebox._model import Model, ModelOptions  # noqa: PLC0415 - of the package that this process was given
    from pylucebox._native_session import NativeSession, SessionOptions  # noqa: PLC0415
    from pylucebox._sampling import SamplingParams  # noqa: PLC0415
    from pylucebox._session import MoreDrafts  # noqa: PLC0415

    start = json.loads(sys.stdin.readline())
    path, n_threads = Path(start["model"]), start["n_threads"]
    ids = tuple(choose_draft_ids(read_model(path), N_DRAFT_VOCAB).tolist()) if start["rows_only"] else ()
    model = Model(ModelOptions(path=path, mtp_in_file=True, draft_ids=ids))
    options = SessionOptions(
        n_ctx=1024, max_width=8, n_threads=n_threads, n_threads_batch=n_threads, draft_chain=start["chained"]
    )
    session = NativeSession(model, options)
    prompt = model.tokenize("The quick brown fox. " * N_PROMPT, add_special=False, parse_special=False)[:N_PROMPT]
    sampler = session.open_sampler(SamplingParams(temperature=0, seed=0, ignore_eos=True), None)
    last, _ = session.prefill(0, prompt, sampler, use_mtp=True)
    print(json.dumps([session.why_stepwise(), model.info.draft_rows_bytes]), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        times = []
        for _ in range(1 + request["n_times"]):
            times.append(session.propose([MoreDrafts(0, request["n_drafts"])])[1])
            session.force(0, last)  # drops the drafts
        print(json.dumps(times[1:]), flush=True)  # the first one may have built its graph


class Arm(MeasuringProcess):
    """A process that runs the package in `package_root`."""

    def __init__(self, package_root: Path, model: Path, way: Way, n_threads: int) -> None:
        super().__init__(__file__, package_env(package_root, Path(__file__).parent))
        why_stepwise, self.n_bytes = self.ask(model=str(model), n_threads=n_threads, **asdict(way))
        if way.chained and why_stepwise:
            raise SystemExit(f"drafts are not made in one launch: {why_stepwise}")

    def draft_us(self, n_drafts: int, n_times: int) -> float:
        """Return the median time of a draft phase."""
        times: list[int] = self.ask(n_drafts=n_drafts, n_times=n_times)
        return statistics.median(times)


# ---- arithmetic


@dataclass(frozen=True)
class Row:
    """An arm's draft phase: its time, and that over the time of the arm it is compared with."""

    n_drafts: int
    arm: str
    draft_us: float
    over_steps: Ratio
    over_stock: Ratio | None


def measure(arms: dict[str, Arm], n_rounds: int, n_times: int) -> dict[int, dict[str, list[float]]]:
    """Return the draft times by number of drafts and arm, one of each per round."""
    order = random.Random(0)
    times: dict[int, dict[str, list[float]]] = {n: {name: [] for name in arms} for n in N_DRAFTS}
    for done in range(n_rounds):
        for n in order.sample(N_DRAFTS, len(N_DRAFTS)):
            for name in order.sample(list(arms), len(arms)):
                times[n][name].append(arms[name].draft_us(n, n_times))
        print(f"round {done + 1} of {n_rounds} done", file=sys.stderr)
    return times


def rows_of(times: dict[int, dict[str, list[float]]]) -> list[Row]:
    """Turn the times into rows, one per number of drafts and arm."""
    return [
        Row(
            n_drafts=n,
            arm=name,
            draft_us=statistics.median(found),
            over_steps=ratio(found, by_arm["steps"]),
            over_stock=ratio(found, by_arm["stock"]) if "stock" in by_arm else None,
        )
        for n, by_arm in times.items()
        for name, found in by_arm.items()
    ]


def table_of(rows: Sequence[Row], title: str) -> Table:
    """Return one line per number of drafts and arm."""
    return Table(
        title=title,
        columns=("drafts", "arm", "ms", "/ steps", "/ stock"),
        rows=tuple(
            (str(row.n_drafts), row.arm, f"{row.draft_us / 1000:.1f}", str(row.over_steps), str(row.over_stock or "-"))
            for row in rows
        ),
    )


def main() -> None:
    """Write the model, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock", type=Path, help="libggml-cpu.so of an unpatched build, for the arm of that name")
    parser.add_argument("--experts", type=int, default=64, help="experts of a block, 10 to 512 (default 64)")
    parser.add_argument("--type", default="q4_K", help="type of the weights (default q4_K)")
    parser.add_argument("--threads", type=int, default=1, help="threads (default 1)")
    parser.add_argument("--rounds", type=int, default=12, help="turns of every arm (default 12)")
    parser.add_argument("--times", type=int, default=3, help="draft phases per turn (default 3)")
    parser.add_argument("--model", type=Path, help="take this model, or write it there if it is missing")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    if args.stock is not None and not args.stock.is_file():
        parser.error(f"--stock is {args.stock}; it must be the libggml-cpu.so of an unpatched build")

    ways = {
        "chain": Way(chained=True, rows_only=True),
        "chain again": Way(chained=True, rows_only=True),
        "whole head": Way(chained=True, rows_only=False),
        "steps": Way(chained=False, rows_only=False),
    }
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        model = args.model or root / "model.gguf"
        if not model.is_file():
            write_model(model, weight_type=args.type, n_expert=args.experts)
        roots = dict.fromkeys(ways, copy_package(root / "ours", None))
        if args.stock is not None:
            ways["stock"], roots["stock"] = ways["steps"], copy_package(root / "stock", args.stock)
        arms = {}
        for name, way in ways.items():
            arms[name] = Arm(roots[name], model, way, args.threads)
            stack.callback(arms[name].close)
        rows = rows_of(measure(arms, args.rounds, args.times))
        size = model.stat().st_size / 2**30
    what = f"{args.type}, {args.experts} experts, {size:.1f} GiB, {args.threads} thread(s)"
    print_table(table_of(rows, f"Draft phase, {what} (medians, 95 % intervals)"))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
