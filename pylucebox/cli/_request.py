"""What `generate` and `chat` share: flags to settings, following a stream, and telling how it went."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TextIO, TypeVar

from pylucebox._result import Completion
from pylucebox._sampling import SamplingParams
from pylucebox.cli._io import note
from pylucebox.cli._ports import EngineLike, EngineOptions

if TYPE_CHECKING:
    from typing_extensions import Self

StepT = TypeVar("StepT")
DoneT = TypeVar("DoneT")

SCHEMA = 1
_SETTINGS = ("top_k", "top_p", "min_p", "seed", "sampler_rng")


def engine_options(args: argparse.Namespace) -> EngineOptions:
    """Return the engine's options from the flags of `add_model` and `add_engine`."""
    # The threads of a step wait for each other, which in a tiny model takes longer than the work they share.
    n_threads = 1 if args.threads is None and args.model is None else args.threads
    return EngineOptions(
        model=args.model,
        mtp=args.mtp,
        verify_width=args.verify_width,
        spec=args.spec,
        n_ctx=args.n_ctx,
        n_threads=n_threads,
        device=args.device,
        draft_vocab=args.draft_vocab,
    )


def sampling_of(args: argparse.Namespace) -> SamplingParams | None:
    """Return the sampler settings from the flags of `add_sampling`; None for greedy decoding.

    Flags that have no effect at temperature 0 are named on standard error.
    """
    given = {name: getattr(args, name) for name in _SETTINGS if getattr(args, name) is not None}
    if args.temperature == 0.0:
        if given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            note(f"lucebox: {flags}: no effect at temperature 0; add --temperature")
        return None
    return SamplingParams(temperature=args.temperature, **given)


def follow(stream: Generator[StepT, None, DoneT], show: Callable[[StepT], None]) -> DoneT:
    """Run a stream to its end and return its value; `show` receives each step as it comes."""
    try:
        while True:
            show(next(stream))
    except StopIteration as end:
        done: DoneT = end.value
        return done
    finally:
        stream.close()


class LiveText:
    """Writes text as it comes; on leaving ``with`` adds the newline that the text lacks.

    Parameters
    ----------
    out
        Where to write.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last = "\n"

    def write(self, text: str) -> None:
        """Write `text` at once."""
        if text:
            self._out.write(text)
            self._out.flush()
            self._last = text[-1]

    def end_line(self) -> None:
        """Go to the start of a line."""
        if self._last != "\n":
            self.write("\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_line()


def stats_line(completion: Completion) -> str:
    """Say in one line how a request went and whether MTP took part."""
    stats, spec = completion.stats, completion.spec
    parts = [f"{stats.completion_tokens} tokens ({completion.finish_reason})"]
    if stats.tokens_per_s is not None:
        parts.append(f"{stats.tokens_per_s:.0f} tok/s")
    parts.append(f"prefill {stats.prompt_tokens} tokens in {stats.prefill_ms:.0f} ms")
    if stats.num_draft_tokens:
        parts.append(
            f"{stats.num_accepted_tokens} of {stats.num_draft_tokens} drafts accepted,"
            f" {stats.decode_tokens / stats.cycles:.2f} tokens per cycle"
        )
    elif spec.effective:
        parts.append("no drafts were made")
    if completion.seed is not None:
        parts.append(f"seed {completion.seed} ({completion.sampler_rng})")
    parts.append(f"MTP {'on' if spec.effective else 'off'}: {spec.reason}")
    return f"[{'; '.join(parts)}]"


def document(args: argparse.Namespace, engine: EngineLike, completion: Completion) -> dict[str, object]:
    """Return the JSON document of a request; a chat's has a key ``message`` more."""
    fields = completion.as_dict()
    stats, spec = fields.pop("stats"), fields.pop("spec")
    message = {"message": fields.pop("message")} if "message" in fields else {}
    return {
        "schema": SCHEMA,
        "model": args.model or engine.info.path,
        **message,
        "completion": fields,
        "stats": stats,
        "spec": spec,
        "sidecar": engine.sidecar.as_dict(),
    }
