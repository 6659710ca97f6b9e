#!/usr/bin/env python3
"""Measure what verifying 2, 4 and 8 rows costs, against the kernels of another build of the CPU back end.

Up to eight rows have the bits of one, and that costs speed where the kernels for several rows that it forbids are
faster. For each weight type three processes keep the same model open and take turns: this build, this build again, and
one with the given ``libggml-cpu`` in place of ours. The second says what noise is; what counts is the last. Times are
those of the verify step alone, one thread; each round takes the arms in another order and every width from the same
state. Costs are in steps of one row of the same arm; ratios are medians over the rounds with 95 % bootstrap intervals.

    python scripts/verify_costs.py --stock PATH/libggml-cpu.so [--types q4_K,q6_K] [--rounds 15] [--json FILE]

The library must be of the llama.cpp build that this package pins, for example from an unpatched build of it.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from measuring_process import MeasuringProcess, package_env

from pylucebox._build import find_native_dir
from pylucebox.cli._table import Table, print_table
from pylucebox.testing import K_QUANT_SPEC, write_tiny_model

WEIGHT_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K", "iq4_nl", "iq4_xs", "iq3_s")
WIDTHS = (1, 2, 4, 8)
ARMS = ("ours", "ours again", "stock")
N_PROMPT = 256
N_BOOTSTRAP = 2000

# Large enough that products with weights take most of a step, small enough to be quantised in a minute.
SPEC = replace(
    K_QUANT_SPEC, kind="agree", n_embd=512, n_head=4, head_dim=128, n_ff_exp=256, n_ff_shexp=256, vocab_multiple=8192
)


# ---- one arm, in a process of its own


def serve() -> None:
    """Answer the requests of `Arm` on standard input until it ends."""
    from pylucebox._model import Model, ModelOptions  # noqa: PLC0415 - of the package that this process was given
    from pylucebox._native_session import NativeSession, SessionOptions  # noqa: PLC0415
    from pylucebox._sampling import SamplingParams  # noqa: PLC0415
    from pylucebox._session import Ask  # noqa: PLC0415

    greedy = SamplingParams(temperature=0, seed=0, ignore_eos=True)
    session: NativeSession | None = None
    state = b""
    for line in sys.stdin:
        request = json.loads(line)
        if "model" in request:
            if session is not None:
                session.close()
            model = Model(ModelOptions(path=Path(request["model"]), mtp_in_file=True, repack=request["repack"]))
            session = NativeSession(model, SessionOptions(n_ctx=2048, max_width=max(WIDTHS)))
            ids = model.tokenize("The quick brown fox. " * N_PROMPT, add_special=False, parse_special=False)
            session.prefill(0, ids[:N_PROMPT], session.open_sampler(greedy, None), use_mtp=True)
            state = session.state_save(0)
            answer: list[int] = []
        elif session is not None:
            session.state_load(0, state, session.open_sampler(greedy, None))
            answer = []
            for _ in range(request["n_cycles"]):
                _, times = session.cycle([Ask(0, request["width"], max(WIDTHS))])
                if not times.graph_built and times.n_rows == request["width"]:
                    answer.append(times.verify_us)
        print(json.dumps(answer), flush=True)


class Arm(MeasuringProcess):
    """A process that runs the package in `package_root`."""

    def __init__(self, package_root: Path) -> None:
        super().__init__(__file__, package_env(package_root, Path(__file__).parent))

    def open(self, model: Path, *, repack: bool) -> None:
        """Open a model and run the prompt."""
        self.ask(model=str(model), repack=repack)

    def verify_us(self, width: int, n_cycles: int) -> float:
        """Return the median time of a verify step of `width` rows, from the state after the prompt on."""
        return statistics.median(self.ask(width=width, n_cycles=n_cycles))


def copy_package(root: Path, stock: Path | None) -> Path:
    """Copy the package to `root`, with `stock` for its CPU back end, and return `root`."""
    native, package = find_native_dir(), root / "pylucebox"
    shutil.copytree(
        Path(__file__).parents[1] / "pylucebox", package, ignore=shutil.ignore_patterns("demo_model", "lib")
    )
    for part in ("_build.json", *(path.name for path in native.glob("_native*"))):
        shutil.copy(native / part, package / part)
    shutil.copytree(native / "lib", package / "lib")
    if stock is not None:
        shutil.copy(stock.resolve(), package / "lib" / "libggml-cpu.so")
    for library in list((package / "lib").glob("*.so")):
        (package / "lib" / f"{library.name}.0").symlink_to(library.name)  # the name that versioned builds ask for
    return root


# ---- arithmetic


@dataclass(frozen=True)
class Ratio:
    """Median over the rounds with a 95 % bootstrap interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return the median and its interval."""
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def ratio(upper: Sequence[float], lower: Sequence[float], seed: int = 0) -> Ratio:
    """Return the median of ``upper / lower``, round by round."""
    ratios = np.asarray(upper) / np.asarray(lower)
    picks = np.random.default_rng(seed).integers(0, len(ratios), (N_BOOTSTRAP, len(ratios)))
    low, high = np.quantile(np.median(ratios[picks], axis=1), (0.025, 0.975))
    return Ratio(float(np.median(ratios)), float(low), float(high))


@dataclass(frozen=True)
class Row:
    """Verify cost at one width: steps of one row in this build and in stock, noise, and this build over stock."""

    weight_type: str
    repack: bool
    width: int
    step_us: float
    ours_steps: Ratio
    stock_steps: Ratio
    noise: Ratio
    over_stock: Ratio


def measure(arms: dict[str, Arm], n_rounds: int, n_cycles: int) -> dict[str, dict[int, list[float]]]:
    """Return the verify times by arm and width, one of each per round."""
    order = random.Random(0)
    times: dict[str, dict[int, list[float]]] = {name: {width: [] for width in WIDTHS} for name in arms}
    for _ in range(n_rounds):
        for width in order.sample(WIDTHS, len(WIDTHS)):
            for name in order.sample(list(arms), len(arms)):
                times[name][width].append(arms[name].verify_us(width, n_cycles))
    return times


def rows_of(weight_type: str, repack: bool, times: dict[str, dict[int, list[float]]]) -> list[Row]:
    """Turn the times of one weight type into rows, one per width."""
    ours, again, stock = (times[name] for name in ARMS)
    return [
        Row(
            weight_type=weight_type,
            repack=repack,
            width=width,
            step_us=statistics.median(ours[1]),
            ours_steps=ratio(ours[width], ours[1]),
            stock_steps=ratio(stock[width], stock[1]),
            noise=ratio(again[width], ours[width]),
            over_stock=ratio(ours[width], stock[width]),
        )
        for width in WIDTHS
    ]


def table_of(rows: Sequence[Row]) -> Table:
    """Return one line per weight type and width."""
    return Table(
        title="Verify cost in steps of one row, one thread (medians, 95 % intervals)",
        columns=("weights", "layout", "rows", "this build", "stock", "noise", "this build / stock"),
        rows=tuple(
            (
                row.weight_type,
                "repacked" if row.repack else "plain",
                str(row.width),
                *map(str, (row.ours_steps, row.stock_steps, row.noise, row.over_stock)),
            )
            for row in rows
        ),
    )


def main() -> None:
    """Measure all weight types and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock", type=Path, help="libggml-cpu.so to compare with")
    parser.add_argument("--types", default=",".join(WEIGHT_TYPES), help="weight types, comma-separated (default: all)")
    parser.add_argument("--no-repack", action="store_true", help="read weights where the file is mapped")
    parser.add_argument("--rounds", type=int, default=15, help="turns of every arm (default 15)")
    parser.add_argument("--cycles", type=int, default=16, help="verify steps per turn and width (default 16)")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve()
        return
    if args.stock is None or not args.stock.is_file():
        parser.error(f"--stock is {args.stock}; it must be the libggml-cpu.so of an unpatched build")

    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        ours = copy_package(root / "ours", None)
        stock = copy_package(root / "stock", args.stock)
        with Arm(ours) as first, Arm(ours) as second, Arm(stock) as third:
            arms = dict(zip(ARMS, (first, second, third), strict=True))
            for weight_type in args.types.split(","):
                model = write_tiny_model(root / "model.gguf", replace(SPEC, weight_type=weight_type)).model
                for arm in arms.values():
                    arm.open(model, repack=not args.no_repack)
                rows += rows_of(weight_type, not args.no_repack, measure(arms, args.rounds, args.cycles))
                print(f"{weight_type} done", file=sys.stderr)
    print_table(table_of(rows))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
