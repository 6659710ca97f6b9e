#!/usr/bin/env python3
"""Compare the adaptive width with no MTP and the best fixed width on this machine, interleaved, and judge it.

    python scripts/live_width.py                               # the built-in model, six pairs, five minutes
    python scripts/live_width.py -m MODEL.gguf --pairs 8 --workload json,entropy,drift --out live

Runs `lucebox ab` twice and reads its records. The first run looks for the fixed width (or no MTP) that is fastest on
each workload, among all of them. The second has these widths, no MTP and the adaptive width, and it alone is judged: a
width that was chosen for its speed in the same run would be flattered by the noise of that. For each workload: the
speed of the adaptive width in units of the best fixed one, paired block by block, with a 95 % interval, and the same
against no MTP. An arm has one process for all workloads of a block: most of a short run is its start, and an
engine in use has seen other texts too. Run it on a machine that does nothing else.

Exit status 1 if the adaptive width is below 1.0 of the best fixed width beyond the interval somewhere, below 0.98 of no
MTP on the text `entropy`, or not above every fixed width of the second run on the text `drift`; 2 if nothing was
measured.
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
from collections.abc import Sequence
from pathlib import Path
from statistics import median

FIXED = ("off", *(f"k{n}" for n in range(1, 8)))
WORKLOADS = "sweep-code,code-edit,sweep-count,prose-story,prose-essay,json,csv-table,dialogue,entropy,drift"
N_RESAMPLES = 10_000
LEAST_OF_OFF = 0.98
LUCEBOX = "import sys; from pylucebox.cli.main import main; sys.exit(main())"


def run_ab(args: argparse.Namespace, arms: Sequence[str], pairs: int, out: Path) -> bool:
    """Run the harness unless `out` has its records; return whether there are any.

    Its own exit status says what it thinks of the arms, which does not matter here.
    """
    command = [
        *(sys.executable, "-c", LUCEBOX, "ab", "--suite", "full", "--workload", args.workload),
        *("--arms", ",".join(arms), "--baseline", "off", "--pairs", str(pairs), "--aa", "1"),
        *("--isolation", "request"),
        *("--seed", str(args.seed), "--out", str(out)),
        *(["--model", args.model] if args.model else []),
    ]
    if not (out / "runs.jsonl").exists():
        subprocess.run([*command, *args.ab], check=False)
    return (out / "runs.jsonl").exists()


def fastest(arms: dict[str, dict[int, float]]) -> str:
    """Return the fixed width with the highest median speed."""
    return max((arm for arm in FIXED if arms.get(arm)), key=lambda arm: median(arms[arm].values()))


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
    parser.add_argument("--pairs", type=int, default=6, help="of the second run")
    parser.add_argument("--scout", type=int, default=2, help="pairs of the first run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder of the records; those that it has are only read")
    parser.add_argument("ab", nargs="*", help="further flags of `lucebox ab`, after --")
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp(prefix="live-width-"))
    if not run_ab(args, FIXED, args.scout, out / "scout"):
        print("nothing was measured", file=sys.stderr)
        return 2
    best_of = {name: fastest(arms) for name, arms in speeds_of(out / "scout").items() if any(map(arms.get, FIXED))}
    wanted = [arm for arm in FIXED if arm == "off" or arm in best_of.values()]
    if not run_ab(args, (*wanted, "adaptive"), args.pairs, out / "main"):
        print("nothing was measured", file=sys.stderr)
        return 2
    rng, failed = random.Random(args.seed), []
    print(f"{'workload':<16} {'best':>5} {'adaptive / best':>24} {'adaptive / off':>24}")
    for workload, arms in speeds_of(out / "main").items():
        best = best_of.get(workload, "off")
        if not all(map(arms.get, ("adaptive", "off", best))):
            continue
        to_best = interval(paired(arms["adaptive"], arms[best]), rng)
        to_off = interval(paired(arms["adaptive"], arms["off"]), rng)
        cells = ["{:.3f} ({:.3f} to {:.3f})".format(*found) for found in (to_best, to_off)]
        print(f"{workload:<16} {best:>5} {cells[0]:>24} {cells[1]:>24}")
        if to_best[2] < 1.0:
            failed.append(f"{workload}: below {best}")
        if workload == "entropy" and to_off[0] < LEAST_OF_OFF:
            failed.append(f"{workload}: below {LEAST_OF_OFF} of off")
        if workload == "drift":
            rivals = [arm for arm in wanted if arms.get(arm)]
            above = {arm: interval(paired(arms["adaptive"], arms[arm]), rng)[0] for arm in rivals}
            failed += [f"{workload}: not above {arm}" for arm, ratio in above.items() if ratio <= 1.0]
    print(f"records: {out}")
    for reason in failed:
        print(f"missed: {reason}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
