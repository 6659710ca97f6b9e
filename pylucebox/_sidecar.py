"""Find the MTP block that belongs to a model: in the model's file, or in an MTP file (sidecar) beside it.

Where it is looked for
----------------------
1. In the model's own file, or its splits.
2. ``mtp-*.gguf`` beside the model, ``MTP/mtp-*.gguf`` below it, ``../MTP/mtp-*.gguf`` next to its directory. The last
   is where repositories put it that keep each quantisation in a directory of its own.
3. The same around the file that the model's path links to, if it is a link, as in a download cache.

Which one is taken
------------------
Only a file that fits: same architecture, embedding length, hyper-connections, number of trunk layers and tokens, a
layout this build loads, and tensors that agree with the file's own metadata. Among several that fit, the order is: the
model's base name; its quantisation; the nearest quantisation in bits per weight; the order of places above; embedding
and LM head borrowed from the model, which saves their memory; the file name. Every file looked at is in the verdict
with its own reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pylucebox._errors import (
    LoadError,
    ModelFormatError,
    ModelNotFoundError,
    SidecarMismatchError,
    SidecarNotFoundError,
    StrPath,
)
from pylucebox._gguf import GgufModel, is_later_split, read_model, strip_split
from pylucebox._mtp_layout import ARCH, MtpLayout, find_block, is_head_only, n_trunk_layers, n_vocab
from pylucebox._spec import SpecReason

__all__ = ["Candidate", "SidecarVerdict", "find_sidecar"]

_TOKENS: Final = "tokenizer.ggml.tokens"


class Difference(NamedTuple):
    """A property in which an MTP file differs from the model."""

    field: str
    model_value: object
    sidecar_value: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One file that was looked at.

    Attributes
    ----------
    path
        The file.
    accepted
        Whether it fits the model and can be loaded; not whether it was taken.
    reason_code, reason
        Why it was taken or not.
    layout
        How it stores the block; None when it holds none or was not read so far.
    borrows_embedding, borrows_head
        Whether the model lends it the token embedding and the LM head.
    n_draft_vocab
        Tokens that it can draft; None: all.
    difference
        Where it contradicts the model; None unless the code is `SpecReason.SIDECAR_MISMATCH`.
    """

    path: Path
    accepted: bool
    reason_code: SpecReason
    reason: str
    layout: MtpLayout | None = None
    borrows_embedding: bool = False
    borrows_head: bool = False
    n_draft_vocab: int | None = None
    difference: Difference | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "path": str(self.path),
            "accepted": self.accepted,
            "reason_code": self.reason_code.value,
            "reason": self.reason,
            "layout": self.layout.value if self.layout else None,
            "borrows_embedding": self.borrows_embedding,
            "borrows_head": self.borrows_head,
            "n_draft_vocab": self.n_draft_vocab,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarVerdict:
    """Which MTP block is used with a model, and why.

    Attributes
    ----------
    model_path
        File of the model to open: the first split, whichever was named.
    path
        File with the block; None when `kind` is ``"none"``.
    kind
        ``"in-file"``, ``"sidecar"`` or ``"none"``.
    accepted
        Whether there is a block to draft with.
    reason_code, reason
        Why, as a stable code and in a sentence.
    layout
        How the block is stored; None when there is none.
    borrows_embedding, borrows_head
        Whether the model lends the token embedding and the LM head.
    n_draft_vocab
        Tokens that can be drafted; None: all.
    candidates
        Every file looked at, best first.
    looked_for
        Every place looked at, in order.
    """

    model_path: Path
    path: Path | None = None
    kind: Literal["none", "in-file", "sidecar"] = "none"
    accepted: bool = False
    reason_code: SpecReason
    reason: str
    layout: MtpLayout | None = None
    borrows_embedding: bool = False
    borrows_head: bool = False
    n_draft_vocab: int | None = None
    candidates: tuple[Candidate, ...] = ()
    looked_for: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {
            "model_path": str(self.model_path),
            "path": str(self.path) if self.path else None,
            "kind": self.kind,
            "accepted": self.accepted,
            "reason_code": self.reason_code.value,
            "reason": self.reason,
            "layout": self.layout.value if self.layout else None,
            "borrows_embedding": self.borrows_embedding,
            "borrows_head": self.borrows_head,
            "n_draft_vocab": self.n_draft_vocab,
            "candidates": [candidate.as_dict() for candidate in self.candidates],
            "looked_for": list(self.looked_for),
        }


def find_sidecar(model_path: StrPath, request: StrPath | Literal[False] = "auto") -> SidecarVerdict:
    """Decide which MTP block to use with a model. Reads headers, and the norms of MTP blocks that could be loaded.

    Parameters
    ----------
    model_path
        The model, or any of its splits.
    request
        ``"auto"`` looks for one and never fails for want of it; ``"off"`` or False looks for none; a path takes this
        file or fails. The path of the model itself asks for the block inside it.

    Raises
    ------
    ModelNotFoundError, ModelFormatError, LoadError
        The model cannot be read, or it is an MTP file without a trunk. With a path also: that file cannot be read,
        holds no MTP block or stores it in a way this build does not load.
    SidecarNotFoundError
        The path names no file.
    SidecarMismatchError
        The path names an MTP file of another model.
    """
    model = read_model(model_path)
    _check_trunk(model)
    if request is False or request == "off":
        return SidecarVerdict(
            model_path=model.path, reason_code=SpecReason.OFF_REQUESTED, reason="drafting was switched off"
        )
    if request != "auto":
        return _take(model, Path(request))

    arch = _arch(model)
    if arch != ARCH:
        reason = f"this build drafts for {ARCH} only, the model is {arch}"
        return SidecarVerdict(model_path=model.path, reason_code=SpecReason.UNSUPPORTED_ARCH, reason=reason)
    inside = _inspect_inside(model)
    if inside.accepted:
        return _verdict(model, inside, "in-file", (inside,), (str(model.path),))
    return _search(model, inside)


def _check_trunk(model: GgufModel) -> None:
    """Refuse what the native loader would take for a model and then stop the process over."""
    if _arch(model) != ARCH:
        return
    if is_head_only(model):
        raise ModelFormatError(
            f"cannot use {str(model.path)!r} as a model",
            path=model.path,
            seen="it holds an MTP block without a trunk",
            advice="Give the model's file; an MTP file goes into the argument mtp.",
        )
    n_trunk = n_trunk_layers(model)
    if n_trunk is not None and n_trunk < 1:
        raise ModelFormatError(
            f"cannot use {str(model.path)!r} as a model",
            path=model.path,
            seen=f"{ARCH}.block_count and {ARCH}.nextn_predict_layers leave {n_trunk} layers for the trunk",
        )


def _take(model: GgufModel, path: Path) -> SidecarVerdict:
    """Use the file that was asked for by name, or raise."""
    try:
        sidecar = read_model(path)
    except ModelNotFoundError as error:
        raise SidecarNotFoundError(looked_for=[error.path or path], seen=error.seen) from error
    arch = _arch(model)
    if arch != ARCH:
        raise SidecarMismatchError(
            f"cannot draft for the model {str(model.path)!r}",
            field="general.architecture",
            model_value=arch,
            sidecar_value=ARCH,
            path=path,
            advice=f"This build drafts for {ARCH} only.",
        )
    inside = _real(sidecar.path) == _real(model.path)
    found = _inspect_inside(model) if inside else _inspect(model, sidecar)
    if found.difference is not None:
        raise SidecarMismatchError(**found.difference._asdict(), path=path)
    if not found.accepted:
        raise ModelFormatError(f"cannot use {str(path)!r} as an MTP file", path=path, seen=found.reason, advice="")
    return _verdict(model, found, "in-file" if inside else "sidecar", (found,), (str(path),))


def _search(model: GgufModel, inside: Candidate) -> SidecarVerdict:
    """Look beside the model."""
    places = list(_places(model))
    looked_for = (str(model.path), *(str(place / "mtp-*.gguf") for place in places))
    seen = {_real(file.path) for file in model.files}
    ranked: list[tuple[tuple[object, ...], Candidate]] = []
    for order, place in enumerate(places):
        for path in _mtp_files(place):
            if _real(path) in seen:
                continue
            seen.add(_real(path))
            found = _inspect_path(model, path)
            ranked.append((_rank(model, found, order), found))
    ranked.sort(key=lambda entry: entry[0])
    candidates = [found for _, found in ranked]
    if inside.layout is not None:
        candidates.append(inside)

    best = candidates[0] if candidates else None
    if best is None:
        reason = f"{model.path.name} has no MTP block and no mtp-*.gguf lies beside it"
        return SidecarVerdict(
            model_path=model.path, reason_code=SpecReason.NO_SIDECAR, reason=reason, looked_for=looked_for
        )
    if not best.accepted:
        more = f" ({len(candidates) - 1} more do not fit either)" if len(candidates) > 1 else ""
        return SidecarVerdict(
            model_path=model.path,
            reason_code=best.reason_code,
            reason=f"{best.path.name}: {best.reason}{more}",
            candidates=tuple(candidates),
            looked_for=looked_for,
        )
    outranked = f"it fits, but {best.path.name} is preferred"
    others = (
        replace(other, reason_code=SpecReason.NOT_CHOSEN, reason=outranked) if other.accepted else other
        for other in candidates[1:]
    )
    return _verdict(model, best, "sidecar", (best, *others), looked_for)


def _verdict(
    model: GgufModel,
    found: Candidate,
    kind: Literal["in-file", "sidecar"],
    candidates: tuple[Candidate, ...],
    looked_for: tuple[str, ...],
) -> SidecarVerdict:
    return SidecarVerdict(
        model_path=model.path,
        path=found.path,
        kind=kind,
        accepted=True,
        reason_code=SpecReason.ACTIVE,
        reason=found.reason,
        layout=found.layout,
        borrows_embedding=found.borrows_embedding,
        borrows_head=found.borrows_head,
        n_draft_vocab=found.n_draft_vocab,
        candidates=candidates,
        looked_for=looked_for,
    )


# ---- one file ------------------------------------------------------------------------------------------


def _refuse(path: Path, code: SpecReason, reason: str, layout: MtpLayout | None = None) -> Candidate:
    return Candidate(path=path, accepted=False, reason_code=code, reason=reason, layout=layout)


def _inspect_inside(model: GgufModel) -> Candidate:
    block = find_block(model)
    if block is None:
        return _refuse(model.path, SpecReason.NO_MTP_IN_FILE, "it holds no MTP block")
    if not block.loadable:
        return _refuse(model.path, SpecReason.SIDECAR_LAYOUT, block.problem, block.layout)
    return Candidate(
        path=model.path,
        accepted=True,
        reason_code=SpecReason.ACTIVE,
        reason="the model's file holds the MTP block",
        layout=block.layout,
    )


def _inspect_path(model: GgufModel, path: Path) -> Candidate:
    try:
        return _inspect(model, read_model(path))
    except LoadError as error:
        return _refuse(path, SpecReason.SIDECAR_UNREADABLE, error.message)


def _inspect(model: GgufModel, sidecar: GgufModel) -> Candidate:
    path = sidecar.path
    difference = _first_difference(model, sidecar, ("general.architecture", _arch))
    if difference is not None:
        return _mismatch(path, difference, None)
    block = find_block(sidecar)
    if block is None:
        return _refuse(path, SpecReason.NO_MTP_IN_FILE, "it holds no MTP block")
    if block.layout not in (MtpLayout.OTHER_BLOCK, MtpLayout.UNKNOWN) and not is_head_only(sidecar):
        whole = "it is a model with an MTP block inside, not an MTP file; open it as the model"
        return _refuse(path, SpecReason.SIDECAR_LAYOUT, whole, MtpLayout.WHOLE_MODEL)
    if not block.loadable:
        return _refuse(path, SpecReason.SIDECAR_LAYOUT, block.problem, block.layout)
    difference = _first_difference(
        model,
        sidecar,
        (f"{ARCH}.embedding_length", lambda file: file.head.get_int(f"{ARCH}.embedding_length")),
        (f"{ARCH}.hyper_connection.count", lambda file: file.head.get_int(f"{ARCH}.hyper_connection.count")),
        ("trunk layers (block_count - nextn_predict_layers)", n_trunk_layers),
        ("vocabulary size", n_vocab),
        (f"SHA-256 of {_TOKENS}", lambda file: file.head.array_digest(_TOKENS)),
    )
    if difference is not None:
        return _mismatch(path, difference, block.layout)
    named = _base_and_quantisation(path)[0] == _base_and_quantisation(model.path)[0]
    reason = "it fits the model" if named else "it fits the model, although its name is another"
    if block.n_draft_vocab is not None:
        reason = f"{reason}; its head covers {block.n_draft_vocab} of {n_vocab(model)} tokens"
    return Candidate(
        path=path,
        accepted=True,
        reason_code=SpecReason.ACTIVE,
        reason=reason,
        layout=block.layout,
        borrows_embedding=block.borrows_embedding,
        borrows_head=block.borrows_head,
        n_draft_vocab=block.n_draft_vocab,
    )


def _first_difference(model: GgufModel, sidecar: GgufModel, *checks: tuple[str, Any]) -> Difference | None:
    """Compare properties in order, so that cheap ones save the reading of dear ones."""
    for field, read in checks:
        model_value, sidecar_value = read(model), read(sidecar)
        if model_value != sidecar_value:
            return Difference(field, model_value, sidecar_value)
    return None


def _mismatch(path: Path, difference: Difference, layout: MtpLayout | None) -> Candidate:
    field, ours, theirs = difference
    return Candidate(
        path=path,
        accepted=False,
        reason_code=SpecReason.SIDECAR_MISMATCH,
        reason=f"{field} is {ours!r} in the model and {theirs!r} in this file",
        layout=layout,
        difference=difference,
    )


def _arch(model: GgufModel) -> str | None:
    return model.head.get_str("general.architecture")


# ---- places and names ----------------------------------------------------------------------------------


def _places(model: GgufModel) -> Iterator[Path]:
    seen: set[Path] = set()
    for home in (model.path.absolute().parent, Path(_real(model.path)).parent):
        for place in (home, home / "MTP", home.parent / "MTP"):
            if place not in seen:
                seen.add(place)
                yield place


def _mtp_files(place: Path) -> list[Path]:
    try:
        paths = sorted(place.iterdir())
    except OSError:  # most places do not exist; the verdict lists all of them
        return []
    return [path for path in paths if path.match("mtp-*.gguf") and not is_later_split(path)]


def _real(path: Path) -> str:
    """Resolve links; unlike `Path.resolve` this does not raise on links that run in a circle."""
    return os.path.realpath(path)


_QUANTISATION: Final = re.compile(r"[-.]((?:i?q|tq)\d\w*|bf16|f16|f32|mxfp4\w*|nvfp4\w*)$")
_DECORATION: Final = re.compile(r"[-.](?:ud|shared)$")


def _base_and_quantisation(path: Path) -> tuple[str, str]:
    """Split ``mtp-Name-shared-Q8_0.gguf`` into ``name`` and ``q8_0``."""
    base = strip_split(path.name).lower().removeprefix("mtp-")
    match = _QUANTISATION.search(base)
    if match:
        base = base[: match.start()]
    return _DECORATION.sub("", base), match[1] if match else ""


def _bits(quantisation: str) -> int:
    match = re.search(r"\d+", quantisation)
    return int(match[0]) if match else 0


def _rank(model: GgufModel, found: Candidate, place: int) -> tuple[object, ...]:
    base, quantisation = _base_and_quantisation(model.path)
    found_base, found_quantisation = _base_and_quantisation(found.path)
    return (
        not found.accepted,
        found_base != base,
        found_quantisation != quantisation,
        abs(_bits(found_quantisation) - _bits(quantisation)),
        place,
        not (found.borrows_embedding and found.borrows_head),
        found.path.name,
    )
