"""What an open edit, refresh or rebase has done so far: the content of ``vendor/.cache/session.json``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from .chain import CLEAN
from .layout import Layout, write_text


@dataclass
class Done:
    """One patch that was carried: its name, the trees around it, the outcome, and the hunks that had moved."""

    name: str
    before: str
    after: str
    outcome: str = CLEAN
    offsets: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Session:
    """An open edit, refresh or rebase, as it stands in the session file.

    Attributes
    ----------
    kind
        ``"edit"``, ``"refresh"`` or ``"rebase"``.
    start
        Tree that the first patch is carried onto.
    series
        Hash of the series on disk and tree of the pin when it was opened, which must still be the same.
    order
        The patches of the result, in order, the new one included.
    done
        What was carried so far; a prefix of `order`.
    patch
        The patch that is being edited or that stopped; empty otherwise.
    conflicts
        Files in conflict; empty if none.
    at
        Tree in vendor/llama.cpp without what was changed by hand since.
    skeleton
        Header of a new patch; empty otherwise.
    pin
        The new pin of a rebase as text; empty otherwise.
    acknowledged
        Upstream's changes that are not in the result and that a person accepted, with the reason.
    given
        Trees before and after what a person changed by hand, for `abort` to save; empty if nothing was taken up yet.
    dropped
        Patches that a person agreed to take out, with the evidence.
    verified
        What `verify` found for the result, as lines for the report.
    """

    kind: str
    start: str
    series: str
    order: list[str]
    done: list[Done] = field(default_factory=list)
    patch: str = ""
    conflicts: list[str] = field(default_factory=list)
    at: str = ""
    skeleton: str = ""
    pin: str = ""
    given: list[str] = field(default_factory=list)
    acknowledged: dict[str, str] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    verified: list[str] = field(default_factory=list)

    @property
    def tip(self) -> str:
        """The tree after what was carried."""
        return self.done[-1].after if self.done else self.start

    def save(self, layout: Layout) -> None:
        """Record the session."""
        write_text(layout.session_file, json.dumps(asdict(self), indent=1) + "\n")
