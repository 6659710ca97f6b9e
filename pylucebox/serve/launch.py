"""What a worker is started with: the arguments of llama-server, and whether drafts are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pylucebox._dispatch import decide_spec
from pylucebox._errors import SpecUnavailableError
from pylucebox._sidecar import find_sidecar
from pylucebox._spec import SpecReason, SpecState, spec_inactive
from pylucebox.serve.drafting import DrafterPlan, plan_drafter
from pylucebox.serve.flags import ServeFlags
from pylucebox.width import MAX_WIDTH

__all__ = ["Launch", "plan_launch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A worker to start; it goes to the worker as JSON.

    Attributes
    ----------
    arguments
        Command line of llama-server.
    spec
        Whether drafts are made, as `SpecState.as_dict` has it.
    verify_width
        0 adaptive, or the width of every pass.
    max_width
        Widest pass.
    even_drafts
        Whether slots that run together draft the same number.
    files
        Files of the model.
    drafter
        What the server drafts with; None if it does not.
    require
        Whether the worker ends when it finds that there are no drafts.
    tls, prefix
        How it is asked for its health.
    """

    arguments: tuple[str, ...]
    spec: Mapping[str, bool | str]
    verify_width: int
    max_width: int
    even_drafts: bool
    require: bool
    files: tuple[str, ...]
    drafter: DrafterPlan | None = None
    tls: bool = False
    prefix: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return asdict(self)

    @property
    def drafts(self) -> bool:
        """Whether it is to make drafts."""
        return bool(self.spec["effective"])


def plan_launch(flags: ServeFlags, port: int, *, failed: str = "") -> Launch:
    """Look at the model's files and decide how to serve them.

    Parameters
    ----------
    flags
        The command line.
    port
        What the supervisor listens on.
    failed
        How the last start with drafts ended, to start without them; empty if none did.

    Raises
    ------
    LuceboxError
        The model, the MTP file that was named, or the draft vocabulary cannot be used; see `find_sidecar` and
        `plan_drafter`.
    SpecUnavailableError
        Drafts are required and cannot be had.
    """
    off = flags.mtp == "off" or flags.verify_width == 1 or bool(flags.no_drafts)
    verdict = find_sidecar(flags.model, False if off else flags.mtp)
    spec = _decide(flags, decide_spec(verdict, flags.verify_width), failed)
    if flags.spec == "require" and not spec.effective:
        raise SpecUnavailableError(
            reason_code=spec.reason_code, reason=spec.reason, advice="Mend the cause, or leave out --spec require."
        )
    max_width = (flags.verify_width or MAX_WIDTH) if spec.effective else 1
    drafting: list[str] = []
    if spec.effective:
        drafting = ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(max_width - 1)]
        if verdict.kind == "sidecar":
            drafting += ["--model-draft", str(verdict.path)]
    return Launch(
        arguments=(
            *("--model", str(verdict.model_path)),
            *("--host", ",".join(flags.hosts)),
            *("--port", str(port)),
            "--metrics",
            *drafting,
            *flags.rest,
        ),
        spec=spec.as_dict(),
        verify_width=flags.verify_width if spec.effective else 1,
        max_width=max_width,
        even_drafts=flags.even_drafts,
        require=flags.spec == "require",
        files=tuple(str(path) for path in (verdict.model_path, verdict.path) if path),
        drafter=plan_drafter(flags.draft_vocab, verdict) if spec.effective else None,
        tls=flags.tls,
        prefix=flags.prefix,
    )


def _decide(flags: ServeFlags, spec: SpecState, failed: str) -> SpecState:
    if flags.no_drafts and flags.mtp != "off" and flags.verify_width != 1:
        return spec_inactive(SpecReason.UNSUPPORTED_MODE, flags.no_drafts)
    if failed and spec.effective:
        return spec_inactive(SpecReason.LOAD_FAILED, f"with the MTP block the server {failed}; its log says why")
    return spec
