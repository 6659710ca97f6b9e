"""`lucebox quantize`: write a model with fewer bits."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from pylucebox._quantize_model import Quantised, QuantisedTensor, quantize_model
from pylucebox._quantize_plan import Role
from pylucebox._threads import default_threads
from pylucebox.cli._args import Parser, add_json, whole
from pylucebox.cli._io import Progress, print_json, progress
from pylucebox.cli._ports import EngineFactory
from pylucebox.cli._table import Table, print_table

SUMMARY = "write a model with fewer bits"
DESCRIPTION = (
    "Quantise a qwen4exp model or an MTP file. TYPE is what the experts and other large matrices become; norms, router,"
    " index and recurrences stay f32, tables and what every token runs through keep six bits or more, and an MTP block"
    " inside keeps eight. The file gets its name when it is whole; a run that was broken off goes on where it was when"
    " the command is given again."
)
SCHEMA = 1

_ROLES = {
    Role.DECIDES: "norms, router, index, recurrences",
    Role.TABLE: "token embedding, LM head",
    Role.STEERS: "what every token runs through",
    Role.BULK: "experts and other matrices",
    Role.DRAFTS: "MTP block",
    Role.OTHER: "not numbers to quantise",
}


def add_arguments(parser: Parser) -> None:
    """Add the command's arguments."""
    parser.add_argument("source", metavar="IN", help="GGUF file of f32, f16, bf16 or q8_0 tensors, or its first split")
    parser.add_argument("target", metavar="OUT", help="file to write")
    parser.add_argument("type", metavar="TYPE", help="type of the large matrices, such as q4_K, q6_K, iq4_xs or q8_0")
    parser.add_argument("--force", action="store_true", help="replace OUT if it is there (default: refuse)")
    parser.add_argument(
        "--threads",
        type=whole(1, 512),
        metavar="N",
        help="threads that quantise, 1..512 (default: one per physical core that this process may use)",
    )
    add_json(parser)


def run(args: argparse.Namespace, factory: EngineFactory) -> int:  # noqa: ARG001 - no engine is opened
    """Quantise.

    Returns
    -------
    int
        0.

    Raises
    ------
    LuceboxError
        A file cannot be read or written, or the type is none to quantise to.
    """
    with progress(100, "lucebox quantize", unit="%") as advance:
        done = quantize_model(
            args.source,
            args.target,
            args.type,
            n_threads=args.threads or default_threads(),
            overwrite=args.force,
            progress=_Percent(advance),
        )
    if args.json:
        print_json({"schema": SCHEMA, **_document(done)})
    else:
        print_table(_table(done.tensors))
        print(*_sentences(done), sep="\n")
    return 0


class _Percent:
    """Turns bytes into steps of a display with a hundred of them."""

    def __init__(self, advance: Progress) -> None:
        self._advance = advance
        self._shown = 0

    def __call__(self, done: int, total: int) -> None:
        while self._shown < 100 * done // total:
            self._shown += 1
            self._advance(_mib(done))


def _document(done: Quantised) -> dict[str, Any]:
    return {
        "path": done.written.path,
        "n_bytes": done.written.n_bytes,
        "n_bytes_resumed": done.written.n_bytes_resumed,
        "source_bytes": done.source_bytes,
        "tensors": done.tensors,
    }


def _table(tensors: Iterable[QuantisedTensor]) -> Table:
    groups: dict[tuple[Role, str], list[int]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.role, tensor.type_name), []).append(tensor.n_bytes)
    order = list(Role)
    ordered = sorted(groups.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
    rows = tuple((_ROLES[role], type_name, str(len(sizes)), _mib(sum(sizes))) for (role, type_name), sizes in ordered)
    return Table("Tensors", ("what", "type", "number", "size"), rows)


def _sentences(done: Quantised) -> list[str]:
    lines = []
    narrow = [tensor for tensor in done.tensors if tensor.is_fallback]
    if narrow:
        types = ", ".join(sorted({tensor.type_name for tensor in narrow}))
        lines.append(f"{len(narrow)} tensors have rows that their type cannot hold, {narrow[0].name} first: {types}")
    if done.written.n_bytes_resumed:
        lines.append(f"{_mib(done.written.n_bytes_resumed)} were there from an earlier run")
    share = done.written.n_bytes / done.source_bytes
    lines.append(f"wrote {done.written.path}, {_mib(done.written.n_bytes)}, {share:.0%} of the source")
    return lines


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.1f} MiB"
