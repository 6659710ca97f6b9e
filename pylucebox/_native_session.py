"""`Session` over the native library: one owner, calls one at a time, closing safe from any thread."""

from __future__ import annotations

import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pylucebox import _ffi
from pylucebox._errors import ClosedError, SequenceStateError
from pylucebox._model import Model
from pylucebox._sampler import NativeSampler
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask, CycleTimes, MoreDrafts, Progress, Proposal, SeqCycle
from pylucebox._session_options import SessionInfo, SessionOptions
from pylucebox._stats import MAX_DRAFT
from pylucebox.width import MAX_WIDTH

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Where the values of these fields begin in an unpacked lucebox_cycle_result.
TOKENS_AT: Final = 5
DRAFT_TOKENS_AT: Final = TOKENS_AT + MAX_WIDTH
DRAFT_PROBS_AT: Final = DRAFT_TOKENS_AT + MAX_DRAFT

_new_tuple = tuple.__new__  # makes a NamedTuple without the Python function that its class has for that

FLASH_ATTN: Final = {None: -1, False: 0, True: 1}


class NativeSession:
    """`Session` over the native library.

    Parameters
    ----------
    model
        An open model; it may be closed before the session.
    options
        How to open.

    Raises
    ------
    InvalidArgumentError
        An option is out of range for this model.
    OutOfMemoryError
        Caches or scratch memory could not be allocated.
    """

    def __init__(self, model: Model, options: SessionOptions) -> None:
        native = _ffi.native()
        ffi, self._lib = native
        self._ffi = ffi
        self._model = model
        self._calls = _Calls(native, _open(native, model, options))
        self.close = weakref.finalize(self, self._calls.close)

        self.info = self._read_info()
        self.n_ctx, self.n_seq, self.max_width = self.info.n_ctx, self.info.n_seq, self.info.max_width
        self.n_threads = (options.n_threads, options.n_threads_batch)

        # Made once, and moved by one pack or unpack a sequence: the caches are cold when a cycle returns, because the
        # model has just run through them, so each Python operation costs ten times what it does in a loop.
        self._requests = ffi.new("lucebox_cycle_request[]", self.n_seq)
        self._results = ffi.new("lucebox_cycle_result[]", self.n_seq)
        self._stats = ffi.new("lucebox_cycle_stats *")
        self._stats.struct_size = ffi.sizeof("lucebox_cycle_stats")
        self._requests_bytes = ffi.buffer(self._requests)
        self._results_bytes = ffi.buffer(self._results)
        self._stats_bytes = ffi.buffer(self._stats)
        self._no_requests = bytes(len(self._requests_bytes))
        request = _layout(ffi, "lucebox_cycle_request")
        result = _layout(ffi, "lucebox_cycle_result", "logprobs")  # seldom asked for
        self._request_size, self._result_size = request.size, result.size
        self._write_request, self._read_result = request.pack_into, result.unpack_from
        skipped = [name for name, _ in ffi.typeof("lucebox_cycle_result").fields if name != "logprobs"]
        self._read_logprobs = _layout(ffi, "lucebox_cycle_result", *skipped).unpack_from
        self._read_stats = _layout(ffi, "lucebox_cycle_stats", "struct_size").unpack_from
        self._native_cycle = self._lib.lucebox_session_cycle
        self._n_more = ffi.new("int32_t[]", self.n_seq)
        self._proposals = ffi.new("lucebox_proposal[]", self.n_seq)
        self._draft_us = ffi.new("int64_t *")
        self._proposals_bytes = ffi.buffer(self._proposals)
        proposal = _layout(ffi, "lucebox_proposal")
        self._proposal_size, self._read_proposal = proposal.size, proposal.unpack_from
        self._native_propose = self._lib.lucebox_session_propose

    def _read_info(self) -> SessionInfo:
        native = self._ffi.new("lucebox_session_info *")
        native.struct_size = self._ffi.sizeof("lucebox_session_info")
        _ffi.check(self._calls.run(self._lib.lucebox_session_get_info, native), "cannot describe the session")
        return SessionInfo(**{name: getattr(native, name) for name in SessionInfo.__slots__})

    @property
    def own_pass_reason(self) -> str:
        """Why the MTP block reads prompts in passes of its own; empty if it does not, or there is no block."""
        return _ffi.string(self._ffi, self._calls.run(self._lib.lucebox_session_own_pass_reason))

    def open_sampler(self, params: SamplingParams, chat_json: str | None) -> NativeSampler:
        """Return a sampler for one `prefill` or `state_load`."""
        return NativeSampler(self._model, params, chat_json)

    def prefill(
        self,
        seq: int,
        tokens: Sequence[int],
        sampler: NativeSampler,
        *,
        use_mtp: bool,
        progress: Progress | None = None,
    ) -> tuple[int, int]:
        """Run a prompt in a cleared sequence and sample its first token.

        Parameters
        ----------
        seq
            The sequence.
        tokens
            The prompt.
        sampler
            From `open_sampler`; used up, also on failure.
        use_mtp
            False keeps the sequence without drafts, which spares the MTP block's pass over the prompt.
        progress
            Called with the fraction done after every `n_ubatch` tokens; returning False cancels.

        Returns
        -------
        tuple of int
            The token, and FINISH_NONE, FINISH_EOG or FINISH_CONTEXT.

        Raises
        ------
        InvalidArgumentError
            The prompt is empty or holds ids outside the vocabulary.
        ContextFullError
            The prompt does not fit.
        CancelledError
            `abort` was called or `progress` returned False.
        SamplingError
            The sampler can choose no first token.
        SequenceStateError
            The sequence was not cleared.
        """
        ids = self._ffi.new("int32_t[]", tokens)
        out = self._ffi.new("int32_t[2]")
        with _ffi.progress_callback(progress) as (callback, user_data):
            status = self._calls.run(
                self._lib.lucebox_session_prefill,
                *(seq, ids, len(ids), sampler.release(), use_mtp, callback, user_data, out, out + 1),
            )
        self._check(status, "cannot run the prompt", argument="prompt", value=tokens, n_needed=len(ids))
        return out[0], out[1]

    def propose(self, asks: Sequence[MoreDrafts]) -> tuple[list[Proposal], int]:
        """Make further drafts, which wait for the next cycle, in one native call.

        They are dropped by `clear`, `force`, `draft`, `state_save` and `state_load` of their sequence.

        Parameters
        ----------
        asks
            Further drafts of each sequence, 0 to 7. There are never more than 7 in all, nor more than tokens that the
            context can still take, and none after a prefill without MTP: what is asked beyond is left out.

        Returns
        -------
        tuple of list and int
            All drafts that wait of each sequence, in the order of `asks`, and the time in microseconds.

        Raises
        ------
        CancelledError
            `abort` was called.
        SequenceStateError
            A sequence that is to draft has no prompt or failed earlier.
        DecodeError
            The MTP block could not be run. The sequences that were to draft must then be cleared.
        """
        n_more = self._n_more
        for seq in range(self.n_seq):
            n_more[seq] = 0
        for seq, n in asks:
            n_more[seq] = n
        status = self._calls.run(self._native_propose, n_more, self._proposals, self._draft_us)
        if status or _ffi.pending:
            self._check(status, "cannot draft", argument="n_more", value=list(asks))
        results = []
        for ask in asks:
            seq = ask[0]
            values = self._read_proposal(self._proposals_bytes, seq * self._proposal_size)
            end = 1 + values[0]
            proposal = (seq, values[1:end], values[1 + MAX_DRAFT : end + MAX_DRAFT])
            results.append(_new_tuple(Proposal, proposal))
        return results, self._draft_us[0]

    def cycle(self, asks: Sequence[Ask]) -> tuple[list[SeqCycle], CycleTimes]:
        """Draft, verify and sample for the sequences asked for, in one native call.

        Raises
        ------
        CancelledError
            `abort` was called.
        DecodeError
            The model could not be run. The sequences that took part must then be cleared.
        """
        if self.n_seq > 1:
            self._requests_bytes[:] = self._no_requests  # who is not asked for takes no part
        for seq, width, max_tokens, logprobs in asks:
            self._write_request(self._requests_bytes, seq * self._request_size, width, max_tokens, logprobs)
        status = self._calls.run(self._native_cycle, self._requests, self._results, self._stats)
        if status or _ffi.pending:
            self._check(status, "cannot run a cycle")
        results = []
        for ask in asks:
            seq = ask[0]
            values = self._read_result(self._results_bytes, seq * self._result_size)
            n_tokens, n_drafted, n_verified, n_accepted, finish = values[:TOKENS_AT]
            result = (
                seq,
                values[TOKENS_AT : TOKENS_AT + n_tokens],
                n_drafted,
                n_accepted,
                finish,
                values[DRAFT_PROBS_AT : DRAFT_PROBS_AT + n_drafted],
                n_verified,
                values[DRAFT_TOKENS_AT : DRAFT_TOKENS_AT + n_drafted],
                self._read_logprobs(self._results_bytes, seq * self._result_size)[:n_tokens] if ask[3] else (),
            )
            results.append(_new_tuple(SeqCycle, result))
        return results, _new_tuple(CycleTimes, self._read_stats(self._stats_bytes))

    def why_stepwise(self) -> str:
        """Return why each draft has a launch of its own; empty if all of a cycle are made in one."""
        return _ffi.string(self._ffi, self._calls.run(self._lib.lucebox_session_why_stepwise))

    def failure(self, seq: int) -> str:
        """Return why a sequence ended with FINISH_FAILED; empty if it did not."""
        return _ffi.string(self._ffi, self._calls.run(self._lib.lucebox_session_failure, seq))

    def n_past(self, seq: int) -> int:
        """Return the tokens of a sequence that are in the context."""
        return int(self._calls.run(self._lib.lucebox_session_n_past, seq))

    def logits(self, seq: int, row: int) -> npt.NDArray[np.float32]:
        """Return a copy of the logits that token `row` of the last prefill or cycle was sampled from.

        Returns
        -------
        numpy.ndarray
            Shape (n_vocab,), float32.

        Raises
        ------
        SequenceStateError
            There are none: the sequence took no part in the session's last call.
        """
        import numpy as np  # noqa: PLC0415 - only those who ask for logits pay for it

        n_bytes = self._model.info.n_vocab * self._ffi.sizeof("float")

        def copy(session: Any) -> npt.NDArray[np.float32] | None:
            pointer = self._lib.lucebox_session_logits(session, seq, row)
            if not pointer:
                return None
            return np.array(np.frombuffer(self._ffi.buffer(pointer, n_bytes), dtype=np.float32))

        found: npt.NDArray[np.float32] | None = self._calls.run(copy)
        if found is None:
            raise SequenceStateError(f"there are no logits for token {row} of sequence {seq}")
        return found

    def draft(self, seq: int, n: int) -> tuple[list[int], list[float]]:
        """Draft `n` tokens, 1 to 7, after the sequence's last token and forget them again, and those that wait.

        Returns
        -------
        tuple of lists
            The tokens, and each one's probability over the whole draft vocabulary, or, where it shares the sampler's
            noise, what its lead says of its chance to hold.

        Raises
        ------
        SequenceStateError
            The sequence has no prompt, or was prefilled without MTP.
        """
        n_max = self._lib.LUCEBOX_MAX_DRAFT
        tokens, probs = self._ffi.new("int32_t[]", n_max), self._ffi.new("float[]", n_max)
        status = self._calls.run(self._lib.lucebox_session_draft, seq, n, tokens, probs)
        self._check(status, "cannot draft", argument="n", value=n)
        return self._ffi.unpack(tokens, n), self._ffi.unpack(probs, n)

    def draft_logits(self, seq: int) -> npt.NDArray[np.float32]:
        """Return the logits of the draft after the sequence's last token; drafts that wait are dropped.

        Returns
        -------
        numpy.ndarray
            Shape (n_vocab,), float32; -inf for tokens that cannot be drafted.

        Raises
        ------
        SequenceStateError
            The sequence has no prompt, was prefilled without MTP, or its context is full.
        """
        import numpy as np  # noqa: PLC0415

        logits = np.empty(self._model.info.n_vocab, dtype=np.float32)
        pointer = self._ffi.cast("float *", self._ffi.from_buffer(logits))
        status = self._calls.run(self._lib.lucebox_session_draft_logits, seq, pointer)
        self._check(status, "cannot draft", argument="seq", value=seq)
        return logits

    def force(self, seq: int, token: int) -> None:
        """Replace the last sampled token, which is not in the context yet.

        Raises
        ------
        InvalidArgumentError
            The token is outside the vocabulary.
        """
        status = self._calls.run(self._lib.lucebox_session_force, seq, token)
        self._check(status, "cannot force a token", argument="token", value=token)

    def state_save(self, seq: int) -> bytes:
        """Return all state of a sequence between cycles, without its sampler; drafts that wait are dropped.

        Raises
        ------
        SequenceStateError
            The sequence has no prompt.
        """
        save, size = self._lib.lucebox_session_state_save, self._ffi.new("size_t *")
        self._check(self._calls.run(save, seq, self._ffi.NULL, 0, size), "cannot save the state")
        state = self._ffi.new("char[]", size[0])
        self._check(self._calls.run(save, seq, state, len(state), size), "cannot save the state")
        return bytes(self._ffi.buffer(state, size[0]))

    def state_load(self, seq: int, state: bytes, sampler: NativeSampler) -> None:
        """Continue a sequence from a saved state with `sampler`, which is used up, also on failure.

        Raises
        ------
        InvalidArgumentError
            The state is damaged or from a session of another kind.
        """
        load, data = self._lib.lucebox_session_state_load, self._ffi.from_buffer(state)
        status = self._calls.run(load, seq, data, len(state), sampler.release())
        self._check(status, "cannot restore the state", argument="state", value=f"{len(state)} bytes")

    def clear(self, seq: int) -> None:
        """Forget a sequence; does nothing on a closed session."""
        try:
            status = self._calls.run(self._lib.lucebox_session_clear, seq)
        except ClosedError:
            return
        self._check(status, "cannot clear the sequence", argument="seq", value=seq)

    def abort(self) -> None:
        """Make the running or next prefill, proposal or cycle raise CancelledError. Any thread."""
        self._calls.abort()

    def abort_reset(self) -> None:
        """Take an `abort` back."""
        self._calls.run(self._lib.lucebox_session_abort_reset)

    def _check(
        self, status: int, what: str, *, argument: str | None = None, value: object = None, n_needed: int | None = None
    ) -> None:
        if status and self._calls.closing:
            _ffi.raise_pending()
            raise ClosedError(what="engine")
        path = self._model.info.path if status == self._lib.LUCEBOX_ERR_IO else None
        _ffi.check(status, what, path=path, argument=argument, value=value, n_ctx=self.n_ctx, n_needed=n_needed)


def _open(native: _ffi.Native, model: Model, options: SessionOptions) -> Any:
    ffi, lib = native
    params = ffi.new("lucebox_session_params *")
    lib.lucebox_session_params_init(params)
    for name in ("n_ctx", "n_seq", "n_ubatch", "n_threads", "n_threads_batch", "max_width", "n_kept_graphs"):
        setattr(params, name, getattr(options, name))
    params.flash_attn = FLASH_ATTN[options.flash_attn]
    params.mtp_kv_in_trunk = options.mtp_kv_in_trunk
    params.draft_chain = options.draft_chain
    params.attend_selected = options.attend_selected
    params.even_drafts = options.even_drafts
    params.coupled_drafts = options.coupled_drafts
    cache_types = [ffi.new("char[]", name.encode()) for name in (options.cache_type_k, options.cache_type_v)]
    params.cache_type_k, params.cache_type_v = cache_types
    out = ffi.new("lucebox_session **")
    with model.handle as handle:
        status = lib.lucebox_session_open(handle, params, out)
    what = f"cannot open a session on {model.info.path!r}"
    _ffi.check(status, what, argument="session options", value=options)
    return out[0]


def _layout(ffi: Any, name: str, *skipped: str) -> struct.Struct:
    """Return the layout of a C struct of numbers, as the compiler laid it out; the fields `skipped` are left out."""
    kinds = {"int32_t": "i", "int64_t": "q", "float": "f", "_Bool": "?"}
    text, end = "=", 0
    for field, info in ffi.typeof(name).fields:
        length = info.type.length if info.type.kind == "array" else 1
        size = ffi.sizeof(info.type)
        if field not in skipped:
            kind = info.type.item.cname if info.type.kind == "array" else info.type.cname
            text += f"{info.offset - end}x{length}{kinds[kind]}"
            end = info.offset + size
    return struct.Struct(f"{text}{ffi.sizeof(name) - end}x")


class _Calls:
    """The native session, its calls one at a time, and a close that stops the running call and waits for it.

    A call may run Python (progress, log handlers). If that closes the session, it is freed when the call is over.
    """

    def __init__(self, native: _ffi.Native, pointer: Any) -> None:
        self._lib = native.lib
        self._pointer = pointer
        self._running = threading.RLock()  # held during every native call but abort
        self._busy = False  # seen by a thread that holds the lock, it means that the thread is inside a call
        self._dropping = threading.Lock()  # held while abort uses the pointer, and while it is dropped
        self.closing = False

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return ``function(session, *args)``.

        Raises
        ------
        ClosedError
            The session is closed, or was opened before this process was forked.
        SequenceStateError
            This thread is inside a call: a callback tried to use the session that called it.
        """
        _ffi.refuse_after_fork()
        with self._running:
            if self._busy:
                raise SequenceStateError("a callback cannot use the session that called it")
            if self._pointer is None:
                raise ClosedError(what="engine")
            self._busy = True
            try:
                return function(self._pointer, *args)
            finally:
                self._busy = False
                if self.closing:
                    self._free()

    def abort(self) -> None:
        """Set the native abort flag; in a forked process nothing runs that it could end."""
        if _ffi.forked:
            return
        with self._dropping:
            if self._pointer is not None:
                self._lib.lucebox_session_abort(self._pointer)

    def close(self) -> None:
        """Free the session as soon as no call runs; in a forked process it is the parent's, and is left alone."""
        if _ffi.forked:
            return
        self.closing = True
        self.abort()
        with self._running:
            if not self._busy:
                self._free()

    def _free(self) -> None:
        with self._dropping:
            pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._lib.lucebox_session_close(pointer)
