"""Whether MTP drafting is in use, and if not, why: as data, with stable codes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["SpecReason", "SpecState", "spec_active", "spec_inactive"]


class SpecReason(str, Enum):
    """Why drafting is on or off, or why an MTP file is or is not used.

    The values are part of the interface: they appear in JSON, logs and metrics and do not change their meaning.
    """

    ACTIVE = "active"
    """Drafts are made; for a file: it is the one in use."""

    OFF_REQUESTED = "off-requested"
    """The caller switched drafting off: mtp="off" or verify_width=1."""

    NO_SIDECAR = "no-sidecar"
    """The model has no MTP block and no MTP file lies beside it."""

    NO_MTP_IN_FILE = "no-mtp-in-file"
    """A file that was looked at holds no MTP block."""

    SIDECAR_MISMATCH = "sidecar-mismatch"
    """The MTP file belongs to another model."""

    SIDECAR_UNREADABLE = "sidecar-unreadable"
    """The MTP file cannot be read or is damaged."""

    SIDECAR_LAYOUT = "sidecar-layout"
    """The MTP file stores its tensors in a way that this build does not load, or they do not fit each other."""

    NOT_CHOSEN = "not-chosen"
    """The file fits, but another one fits better."""

    UNSUPPORTED_ARCH = "unsupported-arch"
    """This build does not draft for the model's architecture."""

    LOAD_FAILED = "load-failed"
    """The native loader refused the MTP block."""

    NOT_WORTH_IT = "not-worth-it"
    """The request is too short for drafts to win back what its prompt costs more with the MTP block."""

    CONTEXT_FAILED = "context-failed"
    """The MTP block was loaded, but its context could not be made, usually for lack of memory."""

    UNSUPPORTED_MODE = "unsupported-mode"
    """The server serves something beside which drafts are not made: embeddings, rankings, images."""

    POLICY_FAILED = "policy-failed"
    """The width policy of a server raised an error or did not answer, and was given up."""

    def __str__(self) -> str:
        """Return the code itself, as `enum.StrEnum` of later Pythons does."""
        return str(self.value)


@dataclass(frozen=True, slots=True)
class SpecState:
    """What was asked of drafting and what is in force.

    Attributes
    ----------
    requested
        Whether the caller wanted drafts.
    effective
        Whether drafts are made.
    reason_code
        `SpecReason.ACTIVE` exactly if `effective`.
    reason
        One sentence for people.
    """

    requested: bool
    effective: bool
    reason_code: SpecReason
    reason: str

    def as_dict(self) -> dict[str, bool | str]:
        """Return the fields for JSON."""
        return {
            "requested": self.requested,
            "effective": self.effective,
            "reason_code": self.reason_code.value,
            "reason": self.reason,
        }


def spec_active(reason: str) -> SpecState:
    """Return the state in which drafts are made."""
    return SpecState(requested=True, effective=True, reason_code=SpecReason.ACTIVE, reason=reason)


def spec_inactive(reason_code: SpecReason, reason: str) -> SpecState:
    """Return a state in which no drafts are made; it counts as requested unless the caller switched drafting off.

    Raises
    ------
    ValueError
        `reason_code` is `SpecReason.ACTIVE`.
    """
    if reason_code is SpecReason.ACTIVE:
        raise ValueError("an inactive state needs the reason why")
    requested = reason_code is not SpecReason.OFF_REQUESTED
    return SpecState(requested=requested, effective=False, reason_code=reason_code, reason=reason)
