"""`lucebox sidecar`: find, inspect, make and shrink the files that hold the MTP block."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from pylucebox._errors import LuceboxError
from pylucebox._gguf import GgufModel, read_model
from pylucebox._gguf_write import Written
from pylucebox._mtp_layout import ARCH, MtpBlock, find_block, is_head_only, n_trunk_layers, n_vocab
from pylucebox._sidecar import SidecarVerdict, find_sidecar
from pylucebox._sidecar_make import make_sidecar
from pylucebox._sidecar_shrink import shrink_sidecar
from pylucebox.cli._args import Parser, add_json
from pylucebox.cli._io import note, print_json
from pylucebox.cli._ports import EngineFactory

SUMMARY = "find, inspect, make and shrink MTP files"
DESCRIPTION = (
    "The MTP block, which makes the drafts, is in the model's own file or in an MTP file beside it (a sidecar)."
    " Files in circulation store it in some ten ways; this tells which one a file has, why it is used or not, makes"
    " such a file from a Hugging Face checkpoint, and makes one smaller."
)
SCHEMA = 1


def add_arguments(parser: Parser) -> None:
    """Add the actions and their flags."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    find = actions.add_parser(
        "find",
        help="say which MTP block a model gets, and why",
        description="Look for the MTP block of a model as opening it does. Reads headers and norms only. Exit status 1"
        " says that there is none to draft with.",
    )
    find.add_argument("model", metavar="MODEL", help="GGUF model, or any of its splits")
    find.set_defaults(do=_find)

    inspect = actions.add_parser(
        "inspect",
        help="say how a file stores its MTP block and whether it can be loaded",
        description="Read one file and tell layout, tables, types and sizes of its MTP block, or what is wrong with it."
        " Exit status 1 says that it cannot be loaded.",
    )
    inspect.add_argument("file", metavar="FILE", help="MTP file, or a model with the block inside")
    inspect.add_argument("--model", "-m", metavar="MODEL", help="also tell whether it fits this model (default: none)")
    inspect.set_defaults(do=_inspect)

    make = actions.add_parser(
        "make",
        help="make an MTP file from a Hugging Face checkpoint",
        description="Read the MTP tensors of a checkpoint (safetensors) and write an MTP file for a GGUF model that was"
        " made from the same checkpoint. Files of the checkpoint without MTP tensors may be missing. A run that was"
        " broken off goes on where it was when the command is given again.",
    )
    make.add_argument("checkpoint", metavar="FOLDER", help="folder with the checkpoint's safetensors files")
    make.add_argument("--model", "-m", metavar="MODEL", required=True, help="GGUF model to draft for")
    make.add_argument(
        "--type",
        default="q8_0",
        metavar="TYPE",
        help="type of the matrices, such as q8_0, q4_K or bf16 (default: q8_0)",
    )
    make.add_argument(
        "--shared",
        action="store_true",
        help="leave embedding and LM head to the model: a third smaller, but only for loaders that take them from"
        " there, as this one does (default: write them)",
    )
    _add_output(make)
    make.set_defaults(do=_make)

    shrink = actions.add_parser(
        "shrink",
        help="make an MTP file smaller",
        description="Copy an MTP file, of any layout that can be loaded, into the standard layout, with less in it."
        " Drafts come out the same without tables that the model lends, and are fewer with a draft vocabulary; the"
        " text is the same in any case.",
    )
    shrink.add_argument("file", metavar="FILE", help="MTP file, or a model with the block inside")
    shrink.add_argument(
        "--draft-vocab",
        metavar="N|FILE",
        help="let the LM head cover N tokens, special ones and then the lowest ids, or the ids in a text file"
        " (default: as in FILE)",
    )
    shrink.add_argument("--drop-embedding", action="store_true", help="leave the token embedding to the model")
    shrink.add_argument("--drop-head", action="store_true", help="leave the LM head to the model")
    shrink.add_argument(
        "--model", "-m", metavar="MODEL", help="model to take the LM head from if FILE has none (default: none)"
    )
    _add_output(shrink)
    shrink.set_defaults(do=_shrink)
    for action in (find, inspect, make, shrink):
        add_json(action)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", "-o", metavar="FILE", required=True, help="file to write")
    parser.add_argument("--force", action="store_true", help="replace the file to write if it is there")


def run(args: argparse.Namespace, factory: EngineFactory) -> int:  # noqa: ARG001 - no engine is opened
    """Do what was asked for.

    Returns
    -------
    int
        0 if done, 1 if there is no block that can be loaded.

    Raises
    ------
    LuceboxError
        A file cannot be read or written, or an argument does not fit it.
    """
    do: Callable[[argparse.Namespace], tuple[dict[str, Any], list[str], bool]] = args.do
    document, lines, ok = do(args)
    if args.json:
        print_json({"schema": SCHEMA, "action": args.action, "ok": ok, **document})
    else:
        print("\n".join(lines))
    return 0 if ok else 1


# ---- find --------------------------------------------------------------------------------------------------


def _find(args: argparse.Namespace) -> tuple[dict[str, Any], list[str], bool]:
    verdict = find_sidecar(args.model)
    return verdict.as_dict(), _verdict_lines(verdict), verdict.accepted


def _verdict_lines(verdict: SidecarVerdict) -> list[str]:
    if verdict.accepted:
        lines = [f"drafts with {verdict.path}", f"  {verdict.reason}; layout {_value(verdict.layout)}"]
        lines += [f"  {_borrowed(verdict.borrows_embedding, verdict.borrows_head)}"]
    else:
        lines = [f"no drafts ({verdict.reason_code}): {verdict.reason}"]
    lines += [
        f"not taken ({candidate.reason_code}): {candidate.path}: {candidate.reason}"
        for candidate in verdict.candidates
        if candidate.path != verdict.path
    ]
    return lines + [f"looked for {place}" for place in verdict.looked_for]


# ---- inspect -----------------------------------------------------------------------------------------------


def _inspect(args: argparse.Namespace) -> tuple[dict[str, Any], list[str], bool]:
    file = read_model(args.file)
    arch = file.head.get_str("general.architecture")
    block = find_block(file) if arch == ARCH else None
    fit = _fit(args.model, args.file) if args.model and block and block.loadable else None
    document = {"path": str(file.path), "architecture": arch, "block": None, "fits": fit}
    lines = [str(file.path)]
    if block is None:
        problem = "it holds no MTP block" if arch == ARCH else f"its architecture is {arch}, MTP blocks of {ARCH} load"
        return document | {"problem": problem}, [*lines, f"  {problem}"], False
    facts = _block_facts(file, block)
    document |= {"problem": block.problem or None, "block": facts}
    lines += [f"  {line}" for line in _block_lines(file, block, facts)]
    if fit:
        lines.append(f"  {'fits' if fit['accepted'] else 'does not fit'} {args.model}: {fit['reason']}")
    return document, lines, block.loadable and (fit is None or bool(fit["accepted"]))


def _block_facts(file: GgufModel, block: MtpBlock) -> dict[str, Any]:
    stored = [file.tensors[name] for names in block.tensors.values() for name in names]
    types: dict[str, int] = {}
    for tensor in stored:
        types[tensor.type_name] = types.get(tensor.type_name, 0) + tensor.n_bytes
    return {
        "layout": block.layout.value,
        "loadable": block.loadable,
        "in_file": not is_head_only(file),
        "misfit": block.misfit,
        "number": n_trunk_layers(file),
        "n_tensors": len(stored),
        "n_bytes": sum(types.values()),
        "n_bytes_by_type": types,
        "borrows_embedding": block.borrows_embedding,
        "borrows_head": block.borrows_head,
        "n_vocab": n_vocab(file),
        "n_draft_vocab": block.n_draft_vocab,
        "unused": block.unused,
    }


def _block_lines(file: GgufModel, block: MtpBlock, facts: dict[str, Any]) -> list[str]:
    lines = [f"layout {block.layout.value}, block {facts['number']}"]
    if not block.loadable:
        return [*lines, f"cannot be loaded: {block.problem}"]
    sizes = ", ".join(f"{name} {_mib(size)}" for name, size in facts["n_bytes_by_type"].items())
    lines.append(f"{facts['n_tensors']} tensors, {_mib(facts['n_bytes'])} ({sizes})")
    if not facts["in_file"]:
        lines.append(_borrowed(block.borrows_embedding, block.borrows_head))
    if block.n_draft_vocab is not None:
        lines.append(f"drafts {block.n_draft_vocab} of {facts['n_vocab']} tokens")
    lines += [f"not used: {name}, {_mib(file.tensors[name].n_bytes)}" for name in block.unused]
    return lines


def _fit(model: str, file: str) -> dict[str, Any]:
    try:
        verdict = find_sidecar(model, file)
    except LuceboxError as error:
        return {"model": model, "accepted": False, "reason": error.seen or str(error)}
    return {"model": model, "accepted": verdict.accepted, "reason": verdict.reason}


# ---- make and shrink ---------------------------------------------------------------------------------------


def _make(args: argparse.Namespace) -> tuple[dict[str, Any], list[str], bool]:
    written = make_sidecar(
        args.checkpoint,
        args.model,
        args.output,
        type_name=args.type,
        own_tables=not args.shared,
        overwrite=args.force,
        progress=_Progress("write"),
    )
    return _written(written)


def _shrink(args: argparse.Namespace) -> tuple[dict[str, Any], list[str], bool]:
    wish = args.draft_vocab
    written = shrink_sidecar(
        args.file,
        args.output,
        draft_vocab=int(wish) if wish is not None and wish.isdecimal() else wish,
        drop_embedding=args.drop_embedding,
        drop_head=args.drop_head,
        model=args.model,
        overwrite=args.force,
        progress=_Progress("write"),
    )
    return _written(written)


def _written(written: Written) -> tuple[dict[str, Any], list[str], bool]:
    file = read_model(written.path)
    block = find_block(file)
    ok = block is not None and block.loadable
    lines = [f"wrote {written.path}, {_mib(written.n_bytes)}"]
    if written.n_bytes_resumed:
        lines.append(f"  {_mib(written.n_bytes_resumed)} were there from an earlier run")
    document: dict[str, Any] = {
        "path": str(written.path),
        "n_bytes": written.n_bytes,
        "n_bytes_resumed": written.n_bytes_resumed,
        "block": None if block is None else _block_facts(file, block),
        "problem": None if block is None else block.problem or None,
    }
    if block is not None:
        lines += [f"  {line}" for line in _block_lines(file, block, _block_facts(file, block))]
    return document, lines, ok


class _Progress:
    """Says on standard error how far the writing is, at most once in two seconds."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._last >= 2.0:
            self._last = time.monotonic()
            note(f"{self._label}: {_mib(done)} of {_mib(total)}")


def _borrowed(embedding: bool, head: bool) -> str:
    names = [name for name, borrowed in (("embedding", embedding), ("LM head", head)) if borrowed]
    return f"the model lends {' and '.join(names)}" if names else "embedding and LM head of its own"


def _value(layout: Any) -> str:
    return layout.value if layout else "unknown"


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:,.1f} MiB"
