"""Owner of a native model: its tokenizer, chat template and description."""

from __future__ import annotations

import dataclasses
import json
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pylucebox import _ffi
from pylucebox._errors import InvalidArgumentError
from pylucebox._handle import SharedHandle
from pylucebox._request import check_ids
from pylucebox._session import Progress

HiddenNorm = Literal["file", "full", "per-stream"]
HIDDEN_NORMS: tuple[HiddenNorm, ...] = ("file", "full", "per-stream")
MTP_SOURCES: tuple[str, ...] = ("none", "in-file", "sidecar")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How to open a model.

    Attributes
    ----------
    path
        The model, or the first of its splits.
    mtp_path
        File of the MTP block, or None.
    mtp_in_file
        Use the MTP block inside `path`; excludes `mtp_path`.
    hidden_norm
        Norm of the hidden state that enters the MTP block: as the file says (full width when it says nothing), one RMS
        over all hyper-connection streams, or one per stream.
    device
        ``auto``, ``cpu`` or a device name of this build.
    n_gpu_layers
        Layers to put on the device; negative for all.
    repack
        Let the CPU back end copy weights into the layout that its kernels like best. Without it they are read where the
        file is mapped.
    draft_ids
        Tokens that can be drafted, ascending: drafts are then picked from a copy of these rows of the LM head. Empty
        for all, or for those that the head of an MTP file covers.
    """

    path: Path
    mtp_path: Path | None = None
    mtp_in_file: bool = False
    hidden_norm: HiddenNorm = "file"
    device: str = "auto"
    n_gpu_layers: int = -1
    repack: bool = True
    draft_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a model is.

    Attributes
    ----------
    path, mtp_path
        Its files; `mtp_path` is None unless the MTP block came from a file of its own.
    architecture, name
        As the file names them; `name` is empty when it does not.
    n_vocab, n_ctx_train, n_embd, n_layer
        Vocabulary size, training context in tokens, width and depth of the trunk.
    n_embd_out
        Floats of the state handed to the MTP block.
    n_layer_nextn
        MTP blocks in use: 0 or 1.
    mtp_source
        ``none``, ``in-file`` or ``sidecar``.
    hidden_norm
        Norm in force: ``full`` or ``per-stream``.
    mtp_borrows_embedding, mtp_borrows_head
        Whether the MTP block uses the trunk's tensors for lack of its own.
    n_params, size_bytes, mtp_size_bytes
        Parameters and sizes of the tensors.
    n_draft_vocab
        Tokens that can be drafted; 0 without an MTP block.
    mtp_block_bytes, draft_rows_bytes
        Size of the MTP block alone, without embedding and LM head, and of the rows copied for drafts to be picked from.
    """

    path: str
    mtp_path: str | None
    architecture: str
    name: str
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_embd_out: int
    n_layer: int
    n_layer_nextn: int
    mtp_source: str
    hidden_norm: str
    mtp_borrows_embedding: bool
    mtp_borrows_head: bool
    n_params: int
    size_bytes: int
    mtp_size_bytes: int
    n_draft_vocab: int
    mtp_block_bytes: int
    draft_rows_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return dataclasses.asdict(self)


class Model:
    """An open model. May be shared by threads; closing it is safe while sessions and other threads still use it.

    Parameters
    ----------
    options
        What to open.
    progress
        Called with the loaded fraction; returning False cancels.

    Raises
    ------
    LoadError
        A file is missing, unreadable or not a model that this build can run.
    BackendError
        The device is not there, or memory ran out.
    CancelledError
        `progress` returned False.
    """

    def __init__(self, options: ModelOptions, progress: Progress | None = None) -> None:
        self._native = _ffi.native()
        self._ffi, self._lib = self._native
        self._handle = SharedHandle(self._open(options, progress), self._lib.lucebox_model_close, "engine")
        self.close = weakref.finalize(self, self._handle.close)
        self._bytes: tuple[dict[int, bytes], dict[int, bytes]] = ({}, {})
        self.info = self._read_info(options)

    def _open(self, options: ModelOptions, progress: Progress | None) -> Any:
        ffi, lib = self._ffi, self._lib
        params = ffi.new("lucebox_model_params *")
        lib.lucebox_model_params_init(params)
        path = ffi.new("char[]", os.fsencode(options.path))
        mtp_path = ffi.NULL if options.mtp_path is None else ffi.new("char[]", os.fsencode(options.mtp_path))
        device = ffi.new("char[]", options.device.encode())
        params.path, params.mtp_path, params.device = path, mtp_path, device
        params.mtp_in_file = options.mtp_in_file
        params.hidden_norm = HIDDEN_NORMS.index(options.hidden_norm)
        params.n_gpu_layers = options.n_gpu_layers
        params.repack = options.repack
        draft_ids = ffi.new("int32_t[]", options.draft_ids)
        params.draft_ids, params.n_draft_ids = draft_ids, len(draft_ids)
        out = ffi.new("lucebox_model **")
        with _ffi.progress_callback(progress) as (params.progress, params.progress_user_data):
            status = lib.lucebox_model_open(params, out)
        try:
            _ffi.check(
                status,
                f"cannot open the model {str(options.path)!r}",
                path=str(options.path),
                argument="model",
                value=str(options.path),
                device=options.device,
            )
        except BaseException:
            lib.lucebox_model_close(out[0])  # a callback may raise after the last chance to stop the load
            raise
        return out[0]

    def _read_info(self, options: ModelOptions) -> ModelInfo:
        native = self._ffi.new("lucebox_model_info *")
        native.struct_size = self._ffi.sizeof("lucebox_model_info")
        with self._handle as model:
            _ffi.check(self._lib.lucebox_model_get_info(model, native), "cannot describe the model")
        return ModelInfo(
            path=str(options.path),
            mtp_path=None if options.mtp_path is None else str(options.mtp_path),
            architecture=self.meta("general.architecture") or "",
            name=self.meta("general.name") or "",
            n_vocab=native.n_vocab,
            n_ctx_train=native.n_ctx_train,
            n_embd=native.n_embd,
            n_embd_out=native.n_embd_out,
            n_layer=native.n_layer,
            n_layer_nextn=native.n_layer_nextn,
            mtp_source=MTP_SOURCES[native.mtp_source],
            hidden_norm=HIDDEN_NORMS[native.hidden_norm],
            mtp_borrows_embedding=native.mtp_borrows_embedding,
            mtp_borrows_head=native.mtp_borrows_head,
            n_params=native.n_params,
            size_bytes=native.size_bytes,
            mtp_size_bytes=native.mtp_size_bytes,
            n_draft_vocab=native.n_draft_vocab,
            mtp_block_bytes=native.mtp_block_bytes,
            draft_rows_bytes=native.draft_rows_bytes,
        )

    @property
    def handle(self) -> SharedHandle:
        """The native model, for the session."""
        return self._handle

    def meta(self, key: str) -> str | None:
        """Return a metadata value of the file as text, or None when the key is absent."""
        out = self._ffi.new("char **")
        with self._handle as model:
            status = self._lib.lucebox_model_meta(model, key.encode(), out)
        if status == self._lib.LUCEBOX_ERR_ARGUMENT:
            return None
        _ffi.check(status, f"cannot read the metadata key {key!r}")
        return _ffi.take_string(self._native, out)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the token ids of `text`.

        Raises
        ------
        InvalidArgumentError
            `text` is not a string or holds lone surrogates.
        """
        data = utf8("text", text)
        capacity = len(data) + 8  # a token has at least one byte, but for the special ones around the text
        found = self._ffi.new("size_t *")
        while True:
            tokens = self._ffi.new("int32_t[]", capacity)
            with self._handle as model:
                status = self._lib.lucebox_tokenize(
                    model, data, len(data), add_special, parse_special, tokens, capacity, found
                )
            if found[0] <= capacity:
                break
            capacity = found[0]
        _ffi.check(status, "cannot tokenise the text", argument="text", value=text)
        ids: list[int] = self._ffi.unpack(tokens, found[0])
        return ids

    def detokenize(self, ids: Sequence[int], *, special: bool) -> str:
        """Return the text of token ids; bytes that are no whole character show as U+FFFD.

        Raises
        ------
        InvalidArgumentError
            An id is outside the vocabulary.
        """
        tokens = self._ffi.new("int32_t[]", self.checked_ids("ids", ids))

        def write(model: Any, buffer: Any, capacity: int, n_bytes: Any) -> int:
            status: int = self._lib.lucebox_detokenize(model, tokens, len(tokens), special, buffer, capacity, n_bytes)
            return status

        return self._sized(write, 8 * len(tokens) + 16, "cannot detokenise").decode("utf-8", "replace")

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of one token, which need not be whole characters; `special` shows control tokens too."""
        known = self._bytes[special].get(token)
        if known is not None:
            return known

        def write(model: Any, buffer: Any, capacity: int, n_bytes: Any) -> int:
            status: int = self._lib.lucebox_token_bytes(model, token, special, buffer, capacity, n_bytes)
            return status

        return self._bytes[special].setdefault(token, self._sized(write, 64, "cannot read the token"))

    def _sized(self, write: Callable[[Any, Any, int, Any], int], capacity: int, what: str) -> bytes:
        """Call a native writer, again with a larger buffer if it says so."""
        found = self._ffi.new("size_t *")
        while True:
            buffer = self._ffi.new("char[]", capacity)
            with self._handle as model:
                status = write(model, buffer, capacity, found)
            if found[0] <= capacity:
                break
            capacity = found[0]
        _ffi.check(status, what)
        return bytes(self._ffi.buffer(buffer, found[0]))

    def checked_ids(self, argument: str, ids: Sequence[int]) -> list[int]:
        """Return `ids` as a list of plain integers of the vocabulary; see `check_ids`."""
        return check_ids(argument, ids, self.info.n_vocab)

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation."""
        with self._handle as model:
            return bool(self._lib.lucebox_token_is_eog(model, token))

    def grammar_of_schema(self, argument: str, schema: str) -> str:
        """Return the GBNF grammar of a JSON schema.

        Parameters
        ----------
        argument
            Where the schema came from, for the error.
        schema
            JSON text.

        Raises
        ------
        InvalidArgumentError
            No grammar can be made of it.
        """
        native = _ffi.native()
        out = native.ffi.new("char **")
        status = native.lib.lucebox_grammar_from_schema(schema.encode(), out)
        _ffi.check(status, "cannot turn the JSON schema into a grammar", argument=argument, value=schema)
        return _ffi.take_string(native, out)

    def chat_render(self, request: Mapping[str, Any]) -> str:
        """Return the JSON text that upstream's template code makes of a chat request.

        Raises
        ------
        InvalidArgumentError
            The request cannot be rendered: unknown roles, bad tools, not JSON.
        ModelFormatError
            The model has no usable chat template.
        """
        try:
            text = json.dumps(request, allow_nan=False).encode("ascii")
        except (TypeError, ValueError, RecursionError) as error:
            allowed = f"values that JSON can express ({error})"
            raise InvalidArgumentError(argument="messages", value=request.get("messages"), allowed=allowed) from error
        out = self._ffi.new("char **")
        with self._handle as model:
            status = self._lib.lucebox_chat_render(model, text, out)
        what = f"cannot render the chat request with {self.info.path!r}"
        _ffi.check(status, what, argument="messages", value=request.get("messages"), path=self.info.path)
        return _ffi.take_string(self._native, out)

    def chat_parse(self, render_json: str, text: str, *, is_partial: bool) -> dict[str, Any]:
        """Return the OpenAI assistant message in a model's reply; `render_json` is what `chat_render` returned.

        Raises
        ------
        InvalidArgumentError
            The reply does not follow the template's form.
        """
        out = self._ffi.new("char **")
        reply = text.replace("\0", "\ufffd").encode()  # NUL would end the C string
        status = _ffi.native().lib.lucebox_chat_parse(render_json.encode(), reply, is_partial, out)
        _ffi.check(status, "cannot read the reply", argument="reply", value=text)
        message: dict[str, Any] = json.loads(_ffi.take_string(self._native, out))
        return message


def utf8(argument: str, text: str) -> bytes:
    """Return `text` as UTF-8.

    Raises
    ------
    InvalidArgumentError
        It is not a string or holds lone surrogates.
    """
    try:
        return text.encode("utf-8")
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidArgumentError(argument=argument, value=text, allowed="text that UTF-8 can express") from error
