#!/usr/bin/env python3
"""Compare the adaptive width with no MTP and every fixed width on this machine, interleaved, and say what came of it.

    python scripts/live_width.py                               # the built-in model, six pairs, twenty minutes
    python scripts/live_width.py -m MODEL.gguf --pairs 8 --workload json,entropy,drift --out live

Runs `lucebox ab` with the arms off, k1 to k7 and adaptive, and reads its records. For each workload: the fixed width
(or no MTP) with the highest median speed, the speed of the adaptive width in units of it, paired block by block, with
a 95 % interval, and the same against no MTP. Choosing the best of eight arms after the fact flatters it by some of the
noise of a run, which the interval does not take out. Run it on a machine that does nothing else.

Exit status 1 if the adaptive width is below 1.0 of the best fixed width beyond the interval somewhere, below 0.98 of no
MTP on the text `entropy`, or not above every fixed width on the text `drift`; 2 if nothing was measured.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

FIXED = ("off", *(f"k{n}" for n in range(1, 8)))
WORKLOADS = "sweep-code,code-edit,sweep-count,prose-story,prose-essay,json,csv-table,dialogue,entropy,drift"
N_RESAMPLES = 10_000
LEAST_OF_OFF = 0.98
LUCEBOX = "import sys; from pylucebox.cli.main import main; sys.exit(main())"


def run_ab(args: argparse.Namespace, out: Path) -> None:
    """Run the harness; its own exit status says what it thinks of the arms, which does not matter here."""
    command = [
        *(sys.executable, "-c", LUCEBOX, "ab", "--suite", "full", "--workload", args.workload),
        *("--arms", ",".join((*FIXED, "adaptive")), "--baseline", "off", "--pairs", str(args.pairs)),
        *("--seed", str(args.seed), "--out", str(out)),
        *(["--model", args.model] if args.model else []),
    ]
    subprocess.run([*command, *args.ab], check=False)


def speeds_of(out: Path) -> dict[str, dict[str, dict[int, float]]]:
    """Return the tokens per second of each workload, arm and block, without runs that were not valid."""
    found: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for line in (out / "runs.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        if run["phase"] == "main" and not run["issues"] and run["decode_tok_s"]:
            found[run["workload"]][run["arm"]][run["block"]] = run["decode_tok_s"]
    return found


def interval(logs: list[float], rng: random.Random) -> tuple[float, float, float]:
    """Return the median ratio and the ends of its 95 % bootstrap interval."""
    medians = sorted(median(rng.choices(logs, k=len(logs))) for _ in range(N_RESAMPLES))
    ends = medians[round(0.025 * N_RESAMPLES)], medians[round(0.975 * N_RESAMPLES) - 1]
    return math.exp(median(logs)), math.exp(ends[0]), math.exp(ends[1])


def paired(one: dict[int, float], other: dict[int, float]) -> list[float]:
    """Return the logarithms of the ratios of the blocks that both have."""
    return [math.log(one[block] / other[block]) for block in sorted(one.keys() & other.keys())]


def main() -> int:
    """Measure, print a table, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", help="GGUF file; the built-in model without")
    parser.add_argument("--workload", default=WORKLOADS, help="names, separated by commas")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder of the records; one that has some is only read")
    parser.add_argument("ab", nargs="*", help="further flags of `lucebox ab`, after --")
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp(prefix="live-width-"))
    if not (out / "runs.jsonl").exists():
        run_ab(args, out)
    if not (out / "runs.jsonl").exists():
        print("nothing was measured", file=sys.stderr)
        return 2
    rng, failed = random.Random(args.seed), []
    print(f"{'workload':<16} {'best':>5} {'adaptive / best':>24} {'adaptive / off':>24}")
    for workload, arms in speeds_of(out).items():
        fixed = {arm: median(arms[arm].values()) for arm in FIXED if arms.get(arm)}
        if not fixed or not arms.get("adaptive"):
            continue
        best = max(fixed, key=lambda arm: fixed[arm])
        to_best = interval(paired(arms["adaptive"], arms[best]), rng)
        to_off = interval(paired(arms["adaptive"], arms["off"]), rng)
        cells = ["{:.3f} ({:.3f} to {:.3f})".format(*found) for found in (to_best, to_off)]
        print(f"{workload:<16} {best:>5} {cells[0]:>24} {cells[1]:>24}")
        if to_best[2] < 1.0:
            failed.append(f"{workload}: below {best}")
        if workload == "entropy" and to_off[0] < LEAST_OF_OFF:
            failed.append(f"{workload}: below {LEAST_OF_OFF} of off")
        if workload == "drift" and to_best[0] <= 1.0:
            failed.append(f"{workload}: not above {best}")
    print(f"records: {out}")
    for reason in failed:
        print(f"missed: {reason}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
