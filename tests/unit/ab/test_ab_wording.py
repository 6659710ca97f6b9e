"""Numbers and times in words."""

from __future__ import annotations

import pytest

from pylucebox.ab import report_data, wording
from pylucebox.ab.results import Pooled, Verdict


@pytest.mark.parametrize(
    ("value", "low", "high", "shown"),
    [
        (1.4204, 1.418, 1.431, "1.420 (1.418 to 1.431)"),
        (0.874, 0.45, 0.966, "0.87 (0.45 to 0.97)"),
        (None, None, None, "not compared"),
    ],
)
def test_ratio_has_the_digits_of_its_interval(
    value: float | None, low: float | None, high: float | None, shown: str
) -> None:
    row = Pooled(arm="k3", verdict="UNRESOLVED", reason="", ratio=value, low=low, high=high)
    assert wording.row_text(row) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-3.0, "0 s"),
        (0.2, "1 s"),
        (59.5, "1 min 00 s"),
        (61.0, "1 min 01 s"),
        (3600.0, "1 h 00 min"),
        (9e4, "25 h 00 min"),
    ],
)
def test_durations_have_two_units(seconds: float, shown: str) -> None:
    assert wording.duration(seconds) == shown


@pytest.mark.parametrize(
    ("iso", "shown"),
    [
        ("2026-11-29 23:04:33.840+00:00", "2026-11-29 23:04 UTC"),
        ("2026-11-29T23:04:33Z", "2026-11-29 23:04 UTC"),
        ("2026-11-30T00:04:33+01:00", "2026-11-29 23:04 UTC"),
        ("yesterday", "yesterday"),
    ],
)
def test_times_are_told_in_utc(iso: str, shown: str) -> None:
    assert wording.time_text(iso) == shown


def test_figures_keep_three_digits() -> None:
    assert [wording.speed_text(value) for value in (1234.5, 99.94, 7.123, None)] == ["1234", "99.9", "7.12", "-"]
    assert [wording.p_text(value) for value in (0.0469, 0.00001, None)] == ["0.047", "1.0e-05", "-"]
    assert [wording.bytes_text(value) for value in (180 * 2**20, 3 * 2**30, None)] == ["180 MiB", "3.0 GiB", "-"]


def test_every_verdict_has_a_sign_and_a_meaning() -> None:
    assert set(wording.MARKS) == set(wording.MEANINGS) == set(Verdict)
    assert len(set(wording.MARKS.values())) == len(Verdict)


def test_environment_is_flattened_and_features_are_a_list() -> None:
    env = {"comparable": {"cpu": {"features": {"AVX": "1", "FMA": "1"}, "cores": 2}, "gpu": [], "list": [{"a": None}]}}
    sheet = report_data.environment_sheets(env)[0]
    assert sheet.rows == (("cpu.features", "AVX, FMA"), ("cpu.cores", "2"), ("gpu", "-"), ("list[0].a", "-"))
