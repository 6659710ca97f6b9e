"""Drafting state: the codes are an interface, and a state cannot contradict itself."""

from __future__ import annotations

import json

import pytest

from pylucebox._spec import SpecReason, spec_active, spec_inactive


def test_codes_are_stable_and_print_as_themselves() -> None:
    assert {str(code) for code in SpecReason} == {
        "active",
        "off-requested",
        "no-sidecar",
        "no-mtp-in-file",
        "sidecar-mismatch",
        "sidecar-unreadable",
        "sidecar-layout",
        "not-chosen",
        "unsupported-arch",
        "load-failed",
        "context-failed",
        "not-worth-it",
        "unsupported-mode",
        "policy-failed",
    }
    assert f"{SpecReason.NO_SIDECAR}" == "no-sidecar"
    assert SpecReason("no-sidecar") is SpecReason.NO_SIDECAR


def test_active_state_was_requested() -> None:
    state = spec_active("drafts with mtp-x.gguf")
    assert (state.requested, state.effective, state.reason_code) == (True, True, SpecReason.ACTIVE)


@pytest.mark.parametrize("code", [code for code in SpecReason if code is not SpecReason.ACTIVE])
def test_inactive_state_counts_as_requested_unless_switched_off(code: SpecReason) -> None:
    state = spec_inactive(code, "why")
    assert state.effective is False
    assert state.requested is (code is not SpecReason.OFF_REQUESTED)


def test_inactive_state_cannot_claim_to_be_active() -> None:
    with pytest.raises(ValueError, match="reason"):
        spec_inactive(SpecReason.ACTIVE, "why")


def test_state_goes_to_json_with_plain_values() -> None:
    state = spec_inactive(SpecReason.CONTEXT_FAILED, "no memory")
    assert json.loads(json.dumps(state.as_dict())) == {
        "requested": True,
        "effective": False,
        "reason_code": "context-failed",
        "reason": "no memory",
    }
