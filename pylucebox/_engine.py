"""The engine: a model with its MTP block, its sequences, and the calls that generate."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from pylucebox._batch import run_many
from pylucebox._build import DEMO_MODEL
from pylucebox._chat import ChatOptions, ChatStep, Message, chat_request, chat_steps, read_reply, render
from pylucebox._drafting import DEFAULT_DRAFT_VOCAB
from pylucebox._engine_facts import EngineFacts
from pylucebox._errors import InvalidArgumentError, StrPath
from pylucebox._generate import Run, TokenBytes
from pylucebox._model import HiddenNorm
from pylucebox._open import EngineOptions, open_engine
from pylucebox._request import (
    Request,
    check_callable,
    check_prompts,
    check_stop,
    settings_per_prompt,
)
from pylucebox._result import ChatCompletion, Completion, Step
from pylucebox._sampling import SamplingParams
from pylucebox._session import Progress
from pylucebox._session_options import DEFAULT_KEPT_GRAPHS
from pylucebox._stats import SpecStats
from pylucebox._turns import Turns
from pylucebox.calibration import CostsWanted, check_costs
from pylucebox.width import WidthPolicy, check_policy, default_policy

if TYPE_CHECKING:
    from typing_extensions import Unpack

Prompt = str | Sequence[int]
Stop = str | Sequence[str]


class Engine(EngineFacts):
    """A model that generates text, with drafts from its own MTP block where it has one.

    Text is the same with and without drafts: a draft is taken only if it equals the token that the model samples in its
    place. When drafts are off, `spec` says why.

    One generation runs at a time. The thread that last advanced an unfinished stream cannot start another generation on
    the engine: that raises SequenceStateError, because waiting for itself would never end. Other threads wait for their
    turn. An engine does not survive fork(): in the child every call raises ClosedError, and closing does nothing.

    Parameters
    ----------
    model
        A GGUF file, or any of its splits.
    mtp
        ``"auto"`` looks for the MTP block in the model's file and beside it; a path takes this file or fails;
        ``"off"`` or False does without.
    n_ctx
        Tokens per sequence, 16 up to the model's training context. None takes the smaller of that and 8192.
    n_seq
        Sequences that `generate_many` runs together, 1 to 8.
    verify_width
        Rows of a verify step: 0 adapts to text and machine, 1 makes no drafts and loads no MTP block, 2 to 8 verify the
        last token and so many drafts less one. It bounds what single requests may ask for (0 bounds at 8), and memory
        for recurrent state grows with it.
    spec
        ``"auto"`` runs without drafts when there is no usable MTP block; ``"require"`` raises instead.
    n_threads, n_threads_batch
        Threads of a decode step and of prefill, 1 to 512. None takes the physical cores that the process may use, and
        `n_threads`.
    n_ubatch
        Prompt tokens computed at once, 32 to 8192. None takes what the device has room for: 512, up to 2048 on a GPU
        with much free memory, down to 64 where memory is short. On a CPU the text is the same with each; for the same
        bytes on a GPU whatever memory is free, give a number.
    device, n_gpu_layers
        ``"auto"``, ``"cpu"``, or a device name of `system_info`; and how many layers are put on it, -1 for all.
    flash_attn
        Whether to use flash attention; None lets the library decide.
    cache_type_k, cache_type_v
        ggml types of the attention caches: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl.
    hidden_norm
        Norm of the hidden state that enters the MTP block: ``"full"`` is one RMS over all hyper-connection streams, as
        the model was trained; ``"per-stream"`` is for files made for the other reading; ``"file"`` does what the file
        says, and ``"full"`` when it says nothing. Changes how many drafts hold, never the text.
    draft_vocab
        Tokens that can be drafted: a number (special ones, then the lowest ids), the path of a file of ids, or
        ``"off"`` for all; fewer make drafts cheaper.
    draft_chain, coupled_drafts, mtp_kv_in_trunk, n_kept_graphs
        For comparison, the text is the same: False gives each draft a launch of its own; False drafts the likeliest
        token even where the sampler's noise is known; False lets the MTP block read prompts and accepted tokens in
        passes of its own; graphs of small steps to keep, 0 to 64 (0: each change of
        width builds one).
    even_drafts
        Sequences of `generate_many` that run together verify the same number of drafts, so that the model runs once for
        all. The environment variable ``STRIX_SPEC_EVEN_DRAFTS=0`` turns it off as well. The text is the same.
    width_policy
        Chooses the widths when `verify_width` is 0; None takes `AdaptiveWidth`.
    width_costs
        What widths cost, for a policy that takes it (a method ``load_costs``): ``"auto"`` reads what an earlier engine
        measured on this machine or measures it now, which takes a few seconds at most; None leaves it untold.
    progress
        Called while the model loads with the fraction done; returning False cancels. Called with 1.0 while widths are
        timed; returning False then leaves their costs unknown.

    Raises
    ------
    InvalidArgumentError
        An argument is out of range.
    LoadError
        A file is missing, unreadable or not a model that this build can run; SidecarNotFoundError and
        SidecarMismatchError concern an MTP file given by path.
    BackendError
        The device is not there, or memory ran out.
    SpecUnavailableError
        Drafts are required and cannot be made.
    CancelledError
        `progress` returned False.
    BuildError
        The installation is broken.
    """

    def __init__(
        self,
        model: StrPath,
        *,
        mtp: StrPath | Literal[False] = "auto",
        n_ctx: int | None = None,
        n_seq: int = 1,
        verify_width: int = 0,
        spec: Literal["auto", "require"] = "auto",
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        n_ubatch: int | None = None,
        device: str = "auto",
        n_gpu_layers: int = -1,
        flash_attn: bool | None = None,
        cache_type_k: str = "f16",
        cache_type_v: str = "f16",
        hidden_norm: HiddenNorm = "file",
        draft_vocab: int | StrPath = DEFAULT_DRAFT_VOCAB,
        draft_chain: bool = True,
        coupled_drafts: bool = True,
        mtp_kv_in_trunk: bool = True,
        n_kept_graphs: int = DEFAULT_KEPT_GRAPHS,
        even_drafts: bool = True,
        width_policy: WidthPolicy | None = None,
        width_costs: CostsWanted = "auto",
        progress: Progress | None = None,
    ) -> None:
        if width_policy is not None and verify_width != 0:
            raise InvalidArgumentError(argument="width_policy", value=width_policy, allowed="only with verify_width=0")
        check_policy(width_policy)
        check_costs(width_costs)
        check_callable("progress", progress)
        options = EngineOptions(
            model=model,
            mtp=mtp,
            n_ctx=n_ctx,
            n_seq=n_seq,
            verify_width=verify_width,
            spec=spec,
            n_threads=n_threads,
            n_threads_batch=n_threads_batch,
            n_ubatch=n_ubatch,
            device=device,
            n_gpu_layers=n_gpu_layers,
            flash_attn=flash_attn,
            cache_type_k=cache_type_k,
            cache_type_v=cache_type_v,
            hidden_norm=hidden_norm,
            draft_vocab=draft_vocab,
            draft_chain=draft_chain,
            coupled_drafts=coupled_drafts,
            mtp_kv_in_trunk=mtp_kv_in_trunk,
            n_kept_graphs=n_kept_graphs,
            even_drafts=even_drafts,
        )
        self._policy = default_policy() if width_policy is None else width_policy
        self._stats = SpecStats()
        self._model, self._session, self._sidecar, self._dispatch, self._rules = open_engine(options, progress)
        self._turns = Turns(self._session)
        self._costs = self._tell_costs(options, width_costs, progress)

    @classmethod
    def demo(cls, **options: Any) -> Engine:
        """Open the model that comes with the package; `options` are those of `Engine` but for `model`.

        One thread unless `options` say otherwise: the model is too small for more.
        """
        return cls(DEMO_MODEL, **{"n_threads": 1, **options})

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 256,
        stop: Stop = (),
        sampling: SamplingParams | None = None,
        logprobs: int | None = None,
        verify_width: int | None = None,
    ) -> Generator[Step, None, Completion]:
        """Generate step by step.

        Parameters
        ----------
        prompt
            Text, with control tokens read as such, or token ids.
        max_tokens
            Most new tokens, at least 1.
        stop
            Strings that end the text; they are not part of it.
        sampling
            None is greedy.
        logprobs
            How many of the likeliest tokens to report beside each token, 0 to 100; None reports nothing.
        verify_width
            Width for this request, up to the engine's; None takes the engine's.

        Yields
        ------
        Step
            The first token, then what each cycle gave. The generator's return value is the `Completion`. Closing it
            early frees the sequence.

        Raises
        ------
        InvalidArgumentError
            An argument is wrong. Raised by the call; all others are raised by the generator.
        ContextFullError
            The prompt does not fit. Raised by the call.
        SequenceStateError
            This thread was the last to advance another stream of this engine, which is not over.
        ClosedError
            The engine was closed, possibly while the stream ran.
        DecodeError
            The model could not be run. The engine stays usable.
        OutOfMemoryError
            An allocation failed. The engine stays usable.
        LoadError
            The model's file was changed since it was opened. Open it again.
        """
        request = self._rules.request(
            self._tokens(prompt),
            max_tokens=max_tokens,
            stop=stop,
            sampling=sampling,
            logprobs=logprobs,
            verify_width=verify_width,
        )
        return self._steps(request)

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 256,
        stop: Stop = (),
        sampling: SamplingParams | None = None,
        logprobs: int | None = None,
        verify_width: int | None = None,
    ) -> Completion:
        """Generate and return the whole; parameters and errors are those of `stream`."""
        request = self._rules.request(
            self._tokens(prompt),
            max_tokens=max_tokens,
            stop=stop,
            sampling=sampling,
            logprobs=logprobs,
            verify_width=verify_width,
        )
        return self._whole(request)

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        *,
        max_tokens: int = 256,
        stop: Stop = (),
        sampling: SamplingParams | Sequence[SamplingParams | None] | None = None,
        logprobs: int | None = None,
        verify_width: int | None = None,
    ) -> list[Completion]:
        """Generate for many prompts, `n_seq` of them together.

        A sequence that is done takes the next prompt at once. `sampling` may be a list with one entry per prompt; the
        other parameters and the errors are those of `stream`, and everything is checked before anything runs.

        Returns
        -------
        list of Completion
            In the order of the prompts. After `cancel` the unfinished ones have the reason ``"cancelled"``. One whose
            grammar allows no next token has ``"error"`` and, as `Completion.error`, what `generate` would raise.
        """
        prompts = check_prompts(prompts)
        all_settings = settings_per_prompt(sampling, len(prompts))
        requests = [
            self._rules.request(
                self._tokens(prompt),
                max_tokens=max_tokens,
                stop=stop,
                sampling=settings,
                logprobs=logprobs,
                verify_width=verify_width,
            )
            for prompt, settings in zip(prompts, all_settings, strict=True)
        ]
        if not requests:
            return []
        for settings in {settings for settings in all_settings if settings is not None}:
            self._session.open_sampler(settings, None)  # a bad grammar must not cost the others their results
        runs: list[Run] = []

        def make_run(request: Request, seq: int) -> Run:
            runs.append(self._run(request, seq))
            return runs[-1]

        with self._turn(requests[0], runs, min(len(requests), self._session.n_seq)):
            done = run_many(self._session, requests, make_run)
        return [run.completion() for run in done]

    @overload
    def chat(
        self, messages: Sequence[Message], *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> ChatCompletion: ...

    @overload
    def chat(
        self, messages: Sequence[Message], *, stream: Literal[True], **options: Unpack[ChatOptions]
    ) -> Generator[ChatStep, None, ChatCompletion]: ...

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        response_format: Mapping[str, Any] | None = None,
        enable_thinking: bool | None = None,
        stream: bool = False,
        max_tokens: int = 256,
        stop: Stop = (),
        sampling: SamplingParams | None = None,
        logprobs: int | None = None,
        verify_width: int | None = None,
    ) -> ChatCompletion | Generator[ChatStep, None, ChatCompletion]:
        """Answer a chat with the model's own template.

        Parameters
        ----------
        messages
            OpenAI messages.
        tools, tool_choice
            OpenAI tools, and ``"auto"``, ``"none"``, ``"required"`` or a function by name.
        response_format
            ``{"type": "text"}``, ``{"type": "json_object"}`` or ``{"type": "json_schema", "json_schema": {"schema":
            ...}}``.
        enable_thinking
            Whether the model may reason first; None leaves it to the template.
        stream
            Return a generator of `ChatStep` whose return value is the `ChatCompletion`.
        max_tokens, stop, sampling, logprobs, verify_width
            As for `stream`. A schema in `sampling` does what `response_format` does; a grammar shapes the whole reply,
            reasoning included, and does not go together with tools.

        Raises
        ------
        InvalidArgumentError
            An argument is wrong, or the template cannot express the request.
        ModelFormatError
            The model has no usable chat template.

        Notes
        -----
        All other errors are those of `stream`.
        """
        own_schema = isinstance(sampling, SamplingParams) and sampling.json_schema is not None
        arguments, sampling = chat_request(
            messages,
            tools=tools,
            tool_choice=tool_choice,
            response_format=response_format,
            enable_thinking=enable_thinking,
            sampling=sampling,
        )
        rendered = render(self._model, arguments, schema_from="json_schema" if own_schema else "response_format")
        request = self._rules.request(
            rendered.prompt,
            max_tokens=max_tokens,
            stop=check_stop(stop) + rendered.stops,
            sampling=sampling,
            logprobs=logprobs,
            verify_width=verify_width,
            chat_json=rendered.json,
            visible=rendered.visible,
        )
        if stream:
            return chat_steps(self._steps(request), self._model, rendered)
        return read_reply(self._model, rendered, self._whole(request))

    def cancel(self) -> None:
        """End the running generation with the reason ``"cancelled"``; does nothing when none runs. Any thread."""
        self._session.abort()

    def close(self) -> None:
        """Stop what runs, wait for the running native call, and free everything. Any thread, any number of times.

        A stream that is open then raises ClosedError.
        """
        self._session.close()
        self._model.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _tokens(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenize(prompt, add_special=True)
        return self._model.checked_ids("prompt", prompt)

    def _policy_of(self, request: Request) -> WidthPolicy | None:
        return self._policy if request.use_mtp and request.verify_width == 0 else None

    def _run(self, request: Request, seq: int = 0) -> Run:
        token_bytes: TokenBytes = self._model.token_bytes
        if request.visible:
            token_bytes = functools.partial(self._shown_bytes, request.visible)
        return Run(request, self._session, seq, token_bytes, self._policy_of(request))

    def _shown_bytes(self, visible: frozenset[int], token: int) -> bytes:
        return self._model.token_bytes(token, special=token in visible)

    @contextlib.contextmanager
    def _turn(self, request: Request, runs: Sequence[Run], n_seq: int) -> Iterator[None]:
        """Hold the session for `runs`, which are counted when it is over, however it ends."""
        with self._turns.hold():
            policy = self._policy_of(request)
            if policy is not None:
                policy.begin(n_seq, self._session.max_width)
            try:
                yield
            finally:
                for run in runs:
                    self._stats = self._stats.merge(run.stats())

    def _whole(self, request: Request) -> Completion:
        run = self._run(request)
        with self._turn(request, [run], 1):
            run.drive()
        return run.completion()

    def _steps(self, request: Request) -> Generator[Step, None, Completion]:
        run = self._run(request)  # before the generator starts, so that what is wrong with it is raised by the call
        return self._stream(request, run)

    def _stream(self, request: Request, run: Run) -> Generator[Step, None, Completion]:
        with self._turn(request, [run], 1):
            yield from self._turns.follow(run.steps())
        return run.completion()
