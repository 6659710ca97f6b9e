"""Measure the whole model on a GPU: cycles, prompts, several sequences, the built-in model, calls of the runtime.

    python scripts/gpu_bench --out DIR [--sections cycles,prefill,sequences,demo,calls] [--arm NAME=VAR:VALUE,...]
    python scripts/gpu_bench --out DIR --page           # turns the JSON files there into one page with charts

Random models of the real widths are written first, with few layers. Each section writes its JSON as it goes and can be
run by itself. Arms live in processes of their own and take turns; the default comes twice, which says what noise is.
``--device cpu --quick`` is a trial that takes less than a minute anywhere.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from gpu_bench import arm_server, counting, cycles, demo, page, plain, prefill
from gpu_bench.settings import Settings

__all__ = ["main"]

SECTIONS = {
    "calls": counting.counting,
    "demo": demo.demo,
    "cycles": cycles.context_cycles,
    "sequences": cycles.sequence_cycles,
    "prefill": prefill.prefill,
    "plain": plain.plain,
}
DEFAULT_SECTIONS = [name for name in SECTIONS if name != "plain"]  # which needs another build


def main(argv: list[str] | None = None) -> int:
    """Run the sections that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the results")
    parser.add_argument("--sections", default=",".join(DEFAULT_SECTIONS), help=f"any of {', '.join(SECTIONS)}")
    parser.add_argument("--device", default="auto", help="as `lucebox doctor` lists it (default: auto)")
    parser.add_argument("--quick", action="store_true", help="small widths and few rounds, for a trial")
    parser.add_argument(
        "--arm",
        action="append",
        default=[],
        metavar="NAME=VAR:VALUE[,VAR:VALUE]",
        help="a further arm with these environment variables; may be given several times",
    )
    parser.add_argument("--types", default="iq4_xs,q4_K", help="weight types (default: iq4_xs,q4_K)")
    parser.add_argument("--layers", type=int, default=4, help="layers of the random models (default: 4)")
    parser.add_argument("--experts", type=int, default=512, help="experts of a layer (default: 512)")
    parser.add_argument(
        "--contexts", default="1024,16384,65536", help="tokens before cycles (default: 1024,16384,65536)"
    )
    parser.add_argument("--widths", default="1,2,3,4,5,6,7,8", help="rows of the cycles (default: 1 to 8)")
    parser.add_argument(
        "--prompts", default="1024,4096,16384", help="tokens of the prompts of prefill (default: 1024,4096,16384)"
    )
    parser.add_argument("--rounds", type=int, default=12, help="turns of every arm (default: 12)")
    parser.add_argument("--seconds", type=float, default=500, help="a section begins no round after so long")
    parser.add_argument("--server", type=Path, help="an unpatched llama-server to compare the built-in model with")
    parser.add_argument("--plain-steps", type=Path, help="lucebox-plain-steps, for section plain")
    parser.add_argument(
        "--stock-libraries", type=Path, help="folder of an unpatched build's libraries, for section plain"
    )
    parser.add_argument("--ways", default="", help="of demo, as 'default: 7 drafts,stock: off' (default: all)")
    parser.add_argument("--models", type=Path, help="folder of the random models (default: a temporary one)")
    parser.add_argument("--write-model", metavar="TYPE", help="only write a random model of a type, and print its path")
    parser.add_argument("--page", action="store_true", help="only make the page of what was measured")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.serve:
        arm_server.serve()
        return 0
    if args.out is None:
        parser.error("--out is missing: the folder that results go to")
    unknown = set(args.sections.split(",")) - set(SECTIONS)
    if unknown:
        parser.error(f"--sections has {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    if args.page:
        page.write_page(args.out)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            out=args.out,
            models=args.models or Path(folder),
            device=args.device,
            quick=args.quick,
            arms=dict(_arm(parser, text) for text in args.arm),
            types=("q8_0",) if args.quick else tuple(args.types.split(",")),
            n_layer=args.layers,
            n_expert=args.experts,
            n_rounds=3 if args.quick else args.rounds,
            contexts=(64, 256) if args.quick else tuple(map(int, args.contexts.split(","))),
            widths=tuple(map(int, args.widths.split(","))),
            prompts=(64, 256) if args.quick else tuple(map(int, args.prompts.split(","))),
            server=args.server,
            plain_steps=args.plain_steps,
            stock_libraries=args.stock_libraries,
            ways=tuple(filter(None, args.ways.split(","))),
            seconds=10 if args.quick else args.seconds,
        )
        if args.write_model:
            print(settings.model(args.write_model))
            return 0
        for name in args.sections.split(","):
            print(f"== {name}", file=sys.stderr)
            SECTIONS[name](settings)
    page.write_page(args.out)
    return 0


def _arm(parser: argparse.ArgumentParser, text: str) -> tuple[str, dict[str, str]]:
    name, found, variables = text.partition("=")
    pairs = [pair.partition(":") for pair in variables.split(",")]
    if not found or not all(pair[0] and pair[1] for pair in pairs):
        parser.error(f"--arm is {text}; it must be like fast=GGML_CUDA_FEW_ROWS:1")
    return name, {variable: value for variable, _, value in pairs}
