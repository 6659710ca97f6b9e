"""Open a model and a session, with the MTP block if it can be had, and say why if not."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeVar

from pylucebox._backends import system_info
from pylucebox._dispatch import Dispatch, Promise, back_end, check_caches, decide_spec, dispatch
from pylucebox._drafting import DEFAULT_DRAFT_VOCAB, DraftVocab, decide_draft_vocab, memory_note, path_note
from pylucebox._errors import (
    CancelledError,
    InvalidArgumentError,
    LuceboxError,
    SpecUnavailableError,
    StrPath,
)
from pylucebox._model import HIDDEN_NORMS, HiddenNorm, Model, ModelOptions
from pylucebox._native_session import NativeSession
from pylucebox._prefill_chunk import DEFAULT_CHUNK, LARGEST_CHUNK, free_device_bytes, open_with_chunk
from pylucebox._request import RequestRules, check_bool, check_integer
from pylucebox._session import Progress
from pylucebox._session_options import DEFAULT_KEPT_GRAPHS, SessionOptions, even_drafts_wanted
from pylucebox._sidecar import SidecarVerdict, find_sidecar
from pylucebox._spec import SpecReason, SpecState, spec_inactive
from pylucebox._threads import default_threads
from pylucebox.width import MAX_WIDTH

CACHE_TYPES: Final = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
DEFAULT_N_CTX: Final = 8192
MIN_N_CTX: Final = 16
MAX_SEQ: Final = 8
MAX_THREADS: Final = 512
MAX_KEPT_GRAPHS: Final = 64
MIN_CHUNK: Final = 32
MAX_CHUNK: Final = 8192

# A model without an MTP block is an ordinary thing; these say that something is wrong with one.
_WORTH_A_WARNING: Final = frozenset(SpecReason) - {
    SpecReason.ACTIVE,
    SpecReason.OFF_REQUESTED,
    SpecReason.NO_SIDECAR,
    SpecReason.UNSUPPORTED_ARCH,
}

_T = TypeVar("_T")

_log = logging.getLogger("pylucebox")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The arguments of `Engine` with its defaults, checked as far as that is possible without the model.

    Raises
    ------
    InvalidArgumentError
        One is out of range.
    """

    model: StrPath
    mtp: StrPath | Literal[False] = "auto"
    n_ctx: int | None = None
    n_seq: int = 1
    verify_width: int = 0
    spec: Literal["auto", "require"] = "auto"
    n_threads: int | None = None
    n_threads_batch: int | None = None
    n_ubatch: int | None = None
    device: str = "auto"
    n_gpu_layers: int = -1
    flash_attn: bool | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    hidden_norm: HiddenNorm = "file"
    draft_vocab: int | StrPath = DEFAULT_DRAFT_VOCAB
    draft_chain: bool = True
    coupled_drafts: bool = True
    mtp_kv_in_trunk: bool = True
    n_kept_graphs: int = DEFAULT_KEPT_GRAPHS
    even_drafts: bool = True

    def __post_init__(self) -> None:
        _path("model", self.model, "the path of a GGUF file")
        if self.mtp is not False:
            _path("mtp", self.mtp, '"auto", "off", False, or the path of an MTP file')
        words = f"0 (adaptive), 1 (no drafts) or 2 to {MAX_WIDTH}"
        check_integer("verify_width", self.verify_width, 0, MAX_WIDTH, words)
        check_integer("n_seq", self.n_seq, 1, MAX_SEQ)
        check_integer("n_gpu_layers", self.n_gpu_layers, -1, 2**31 - 1)
        if self.n_ubatch is not None:
            check_integer("n_ubatch", self.n_ubatch, MIN_CHUNK, MAX_CHUNK)
        if self.n_ctx is not None:
            check_integer("n_ctx", self.n_ctx, MIN_N_CTX, 2**31 - 1)
        for name in ("n_threads", "n_threads_batch"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, MAX_THREADS)
        _choice("spec", self.spec, ("auto", "require"))
        _choice("flash_attn", self.flash_attn, (None, True, False))
        _choice("cache_type_k", self.cache_type_k, CACHE_TYPES)
        _choice("cache_type_v", self.cache_type_v, CACHE_TYPES)
        _choice("hidden_norm", self.hidden_norm, HIDDEN_NORMS)
        check_caches(self.cache_type_v, self.flash_attn)
        if isinstance(self.draft_vocab, int):
            check_integer("draft_vocab", self.draft_vocab, 1, 2**31 - 1)
        else:
            _path("draft_vocab", self.draft_vocab, 'a number of tokens, "off", or the path of a file of token ids')
        check_bool("draft_chain", self.draft_chain)
        check_bool("coupled_drafts", self.coupled_drafts)
        check_bool("mtp_kv_in_trunk", self.mtp_kv_in_trunk)
        check_bool("even_drafts", self.even_drafts)
        check_integer("n_kept_graphs", self.n_kept_graphs, 0, MAX_KEPT_GRAPHS)
        _name("device", self.device, '"auto", "cpu" or a device name')

    @property
    def max_width(self) -> int:
        """Widest step that requests may ask for."""
        return self.verify_width or MAX_WIDTH


class Opened(NamedTuple):
    """What `open_engine` opened and found."""

    model: Model
    session: NativeSession
    sidecar: SidecarVerdict
    dispatch: Dispatch
    rules: RequestRules


def open_engine(options: EngineOptions, progress: Progress | None) -> Opened:
    """Open model and session.

    With ``spec="auto"`` whatever is wrong with the MTP block alone leaves an engine without drafts and a reason; what
    is wrong with the model is raised either way.

    Raises
    ------
    LuceboxError
        As listed for `Engine`.
    """
    off = options.mtp is False or options.mtp == "off" or options.verify_width == 1
    verdict = find_sidecar(options.model, False if off else options.mtp)
    spec = decide_spec(verdict, options.verify_width)
    if not spec.effective:
        _require_none(options, spec)

    system = system_info()
    back = back_end(system.backends, system.devices, options.device, options.n_gpu_layers)
    vocab = decide_draft_vocab(options.draft_vocab, verdict) if spec.effective else None
    model, spec = _open_model(options, verdict, spec, vocab, progress)
    try:
        session, spec = _open_session(options, model, spec)
    except BaseException:
        model.close()
        raise
    level = logging.WARNING if spec.reason_code in _WORTH_A_WARNING else logging.INFO
    if not spec.effective:
        _log.log(level, "no drafts: %s (%s)", spec.reason, spec.reason_code)
    notes = _draft_notes(model, session, vocab) if spec.effective else ()
    path = dispatch(
        spec,
        back,
        verify_width=options.verify_width,
        n_seq=options.n_seq,
        own_pass_reason=session.own_pass_reason,
        draft_notes=notes,
    )
    if path.promise is Promise.UNVERIFIED:
        _log.warning("drafts are made, and the text may differ from that without: %s", path.reason)
    rules = RequestRules(n_ctx=session.n_ctx, verify_width=options.verify_width, max_width=options.max_width, spec=spec)
    return Opened(model, session, verdict, path, rules)


def _draft_notes(model: Model, session: NativeSession, vocab: DraftVocab | None) -> tuple[str, ...]:
    memory = memory_note(model.info, session.info)
    _log.info("%s", memory)
    return (*([vocab.reason] if vocab else []), path_note(session.why_stepwise()), memory)


def _open_model(
    options: EngineOptions,
    verdict: SidecarVerdict,
    spec: SpecState,
    vocab: DraftVocab | None,
    progress: Progress | None,
) -> tuple[Model, SpecState]:
    alone = ModelOptions(
        path=verdict.model_path,
        hidden_norm=options.hidden_norm,
        device=options.device,
        n_gpu_layers=options.n_gpu_layers,
    )
    if not spec.effective:
        return Model(alone, progress), spec
    with_mtp = replace(
        alone,
        mtp_path=verdict.path if verdict.kind == "sidecar" else None,
        mtp_in_file=verdict.kind == "in-file",
        draft_ids=vocab.ids if vocab else (),
    )
    return _or_without_mtp(
        options,
        spec,
        lambda: Model(with_mtp, progress),
        lambda: Model(alone, progress),
        SpecReason.LOAD_FAILED,
    )


def session_options(options: EngineOptions, model: Model, *, max_width: int) -> SessionOptions:
    """Return how to open a session on a model.

    Raises
    ------
    InvalidArgumentError
        The context is longer than the model was trained for.
    """
    trained = model.info.n_ctx_train
    n_ctx = min(trained, DEFAULT_N_CTX) if options.n_ctx is None else options.n_ctx
    if n_ctx > trained:
        allowed = f"{MIN_N_CTX} to {trained}, the model's training context"
        raise InvalidArgumentError(argument="n_ctx", value=n_ctx, allowed=allowed)
    n_threads = options.n_threads or default_threads()
    return SessionOptions(
        n_ctx=n_ctx,
        n_seq=options.n_seq,
        n_ubatch=options.n_ubatch or DEFAULT_CHUNK,
        n_threads=n_threads,
        n_threads_batch=options.n_threads_batch or n_threads,
        max_width=max_width,
        flash_attn=options.flash_attn,
        cache_type_k=options.cache_type_k,
        cache_type_v=options.cache_type_v,
        draft_chain=options.draft_chain,
        coupled_drafts=options.coupled_drafts,
        mtp_kv_in_trunk=options.mtp_kv_in_trunk,
        n_kept_graphs=options.n_kept_graphs,
        even_drafts=options.even_drafts and even_drafts_wanted(os.environ),
    )


def _open_session(options: EngineOptions, model: Model, spec: SpecState) -> tuple[NativeSession, SpecState]:
    alone = session_options(options, model, max_width=1)
    if not spec.effective:
        return _open_sized(options, model, alone), spec
    with_mtp = replace(alone, max_width=options.max_width)
    return _or_without_mtp(
        options,
        spec,
        lambda: _open_sized(options, model, with_mtp),
        lambda: _open_sized(options, model, alone),
        SpecReason.CONTEXT_FAILED,
    )


def _open_sized(options: EngineOptions, model: Model, wanted: SessionOptions) -> NativeSession:
    """Open with the chunk that was asked for, or else one that the device has room for, beside the MTP block if any."""
    if options.n_ubatch is not None:
        return NativeSession(model, wanted)

    def free_bytes() -> int | None:
        return free_device_bytes(system_info().devices, options.device, options.n_gpu_layers)

    session = open_with_chunk(lambda chunk: NativeSession(model, replace(wanted, n_ubatch=chunk)), free_bytes)
    chunk = session.info.n_ubatch
    _log.info("prompts are computed %d tokens at once", chunk)
    if chunk < LARGEST_CHUNK and 2 * chunk <= session.info.n_ctx and free_bytes() is not None:
        _log.warning(
            "prompts are computed %d tokens at once since the GPU's memory is short: texts can differ from those with "
            "another chunk; n_ubatch=%d keeps it, or free memory",
            chunk,
            chunk,
        )
    return session


def _or_without_mtp(
    options: EngineOptions, spec: SpecState, with_mtp: Callable[[], _T], alone: Callable[[], _T], code: SpecReason
) -> tuple[_T, SpecState]:
    """Open with the MTP block; if only that fails, open without it and say why.

    What also fails without the block is not the block's fault, so that error is the one to raise.
    """
    try:
        return with_mtp(), spec
    except CancelledError:
        raise
    except LuceboxError as error:
        opened = alone()
        spec = spec_inactive(code, str(error))
        try:
            _require_none(options, spec)
        except SpecUnavailableError as refused:
            opened.close()  # type: ignore[attr-defined]
            raise refused from error
        return opened, spec


def _require_none(options: EngineOptions, spec: SpecState) -> None:
    if options.spec == "require":
        raise SpecUnavailableError(reason_code=spec.reason_code, reason=spec.reason)


def _path(argument: str, value: object, allowed: str) -> None:
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or "\0" in path or not _encodes(path, os.fsencode):
        raise InvalidArgumentError(argument=argument, value=value, allowed=allowed)


def _name(argument: str, value: object, allowed: str) -> None:
    if not isinstance(value, str) or not value or "\0" in value or not _encodes(value, str.encode):
        raise InvalidArgumentError(argument=argument, value=value, allowed=allowed)


def _encodes(text: str, encode: Callable[[str], bytes]) -> bool:
    """Tell whether the library can be given this text: lone surrogates have no bytes."""
    try:
        encode(text)
    except UnicodeEncodeError:
        return False
    return True


def _choice(argument: str, value: object, choices: tuple[Any, ...]) -> None:
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in choices):
        words = ", ".join(repr(choice) for choice in choices)
        raise InvalidArgumentError(argument=argument, value=value, allowed=f"one of {words}")
