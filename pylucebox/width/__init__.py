"""How many drafts a cycle makes and verifies: the protocols of policies, and the policies that come with the package.

Width w means: verify w - 1 drafts together with the last token, in w rows. Width 1 verifies no draft. A policy sees
only the numbers of past cycles. Nothing here knows the native library or needs NumPy, so any policy can be tested with
simulated costs.
"""

from pylucebox.width.controller import AdaptiveWidth
from pylucebox.width.fixed import FixedWidth
from pylucebox.width.policy import (
    MAX_WIDTH,
    CycleContext,
    CycleObservation,
    CyclePlan,
    DraftPolicy,
    TextListener,
    WidthCosts,
    WidthPolicy,
    check_choice,
    check_policy,
)
from pylucebox.width.telemetry import WidthTelemetry

__all__ = [
    "MAX_WIDTH",
    "AdaptiveWidth",
    "CycleContext",
    "CycleObservation",
    "CyclePlan",
    "DraftPolicy",
    "FixedWidth",
    "TextListener",
    "WidthCosts",
    "WidthPolicy",
    "WidthTelemetry",
    "check_choice",
    "check_policy",
    "default_policy",
]


def default_policy() -> WidthPolicy:
    """Return the policy of an engine that was given none."""
    return AdaptiveWidth()
