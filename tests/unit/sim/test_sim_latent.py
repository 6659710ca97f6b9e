"""Texts made from published acceptance give the published speeds: the cells that the pull requests print."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import pytest

from pylucebox.sim.costs import curve
from pylucebox.sim.latent import PROFILES, Profile, counting, joined, latent, survival_to_tokens, texts
from pylucebox.sim.machine import Machine
from pylucebox.sim.reliability import reliability
from pylucebox.sim.replay import Replay, replay
from pylucebox.sim.rules.linear_fit import LinearFit
from pylucebox.sim.rules.stopping import product
from pylucebox.sim.trace import DEPTH, Trace
from pylucebox.width import FixedWidth, WidthPolicy

TEXTS = {trace.name: trace for trace in texts()}
BY_NAME = {profile.name: profile for profile in PROFILES}
N_SEEDS = 6


def run(trace: Trace, policy: WidthPolicy, machine: str) -> Replay:
    return replay(trace, policy, Machine(curve(machine).costs))


# Speeds in tokens per second as the pull request prints them: without MTP, with two to four drafts, and with its rule.
@pytest.mark.parametrize(
    ("text", "machine", "make", "published"),
    [
        ("seed-code-16k", "gfx1151-16k", lambda: FixedWidth(1), 21.8),
        ("seed-code-16k", "gfx1151-16k", lambda: FixedWidth(3), 32.1),
        ("seed-code-16k", "gfx1151-16k", lambda: FixedWidth(4), 32.6),
        ("seed-code-16k", "gfx1151-16k", lambda: FixedWidth(5), 32.5),
        ("seed-code-16k", "gfx1151-16k", LinearFit, 32.4),
        ("seed-code-64k", "gfx1151-64k", lambda: FixedWidth(3), 28.0),
        ("seed-code-64k", "gfx1151-64k", lambda: FixedWidth(4), 27.7),
        ("seed-code-64k", "gfx1151-64k", lambda: FixedWidth(5), 27.5),
        ("seed-code-64k", "gfx1151-64k", LinearFit, 28.2),
        ("seed-count-66k", "gfx1151-64k", LinearFit, 43.5),
    ],
)
def test_published_speeds_are_reproduced(text: str, machine: str, make: type[WidthPolicy], published: float) -> None:
    assert run(TEXTS[text], make(), machine).tokens_per_s == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(
    ("text", "machine", "published"), [("seed-code-16k", "gfx1151-16k", 32.4), ("seed-code-64k", "gfx1151-64k", 28.2)]
)
def test_the_speed_of_the_rule_does_not_hang_on_one_sample(text: str, machine: str, published: float) -> None:
    samples = [latent(replace(BY_NAME[text], seed=seed)) for seed in range(1, N_SEEDS + 1)]
    speeds = [run(sample, LinearFit(), machine).tokens_per_s for sample in samples]
    assert fmean(speeds) == pytest.approx(published, rel=0.02)


def test_counting_accepts_what_was_published() -> None:
    done = run(TEXTS["seed-count-66k"], LinearFit(), "gfx1151-64k")
    assert done.tokens_per_cycle == pytest.approx(7.74, rel=0.02)
    assert done.n_accepted == pytest.approx(445, rel=0.02)
    assert done.n_verified == pytest.approx(446, rel=0.02)
    assert [cycle.n_verified for cycle in done.cycles[:6]] == [3, 4, 5, 6, 7, 7]  # the published ramp


def test_a_rule_that_stays_at_seven_loses_one_draft_on_counting() -> None:
    class Ramp(FixedWidth):
        def observe(self, *_: object) -> None:
            self.width = min(8, self.width + 1)

    done = run(TEXTS["seed-count-66k"], Ramp(4), "gfx1151-64k")
    assert (done.n_tokens, len(done.cycles), done.n_accepted, done.n_verified) == (511, 66, 445, 446)


@pytest.mark.parametrize("profile", PROFILES, ids=[profile.name for profile in PROFILES])
def test_a_text_yields_the_tokens_a_cycle_that_it_was_made_for(profile: Profile) -> None:
    trace = TEXTS[profile.name]
    for drafts, wanted in enumerate(profile.tokens_per_cycle, 1):
        done = run(trace, FixedWidth(drafts + 1), "gfx1151-16k")
        # One draft that holds moves all cycles after it, so not every figure can be had.
        assert done.tokens_per_cycle == pytest.approx(wanted, rel=0.04)


def test_acceptance_by_place_depends_on_the_width_as_it_does_in_real_texts() -> None:
    # After a wide cycle that ended early the next begins at something hard.
    trace = TEXTS["latent-prose"]

    def first_holds(width: int) -> float:
        cycles = run(trace, FixedWidth(width), "gfx1151-16k").cycles
        return fmean(cycle.n_accepted >= 1 for cycle in cycles)

    assert first_holds(8) < first_holds(2) - 0.02


def test_stopping_at_a_product_gains_on_prose_and_not_on_code_as_exl3_saw() -> None:
    def gain(name: str) -> float:
        fixed = run(TEXTS[name], FixedWidth(6), "gb10-exl3").tokens_per_s
        return run(TEXTS[name], product(0.6, 5), "gb10-exl3").tokens_per_s / fixed - 1

    assert gain("latent-prose") == pytest.approx(0.27, abs=0.1)
    assert abs(gain("latent-code")) < 0.1


def test_probabilities_say_something_and_not_everything() -> None:
    everything = reliability([TEXTS["latent-code"], TEXTS["latent-prose"]])[-1]
    assert 0.2 < everything.skill < 0.8
    assert everything.ece < 0.1


def test_texts_are_the_same_each_time_and_differ_by_seed() -> None:
    profile = PROFILES[0]
    assert latent(profile) == TEXTS[profile.name]
    assert latent(replace(profile, seed=profile.seed + 1)).digest != TEXTS[profile.name].digest


def test_no_draft_foresees_what_is_behind_a_seam() -> None:
    parts = [counting(name=name, n_tokens=20, unforeseen=19) for name in "ab"]
    trace = joined("both", "mixed", parts)
    assert len(trace.tokens) == 40
    assert trace.match[:20] == (*parts[0].match, 0)
    assert trace.match[20:] == parts[1].match


def test_survival_becomes_tokens() -> None:
    assert survival_to_tokens((0.5, 0.25, 0, 0, 0, 0, 0)) == (1.5, *(1.75,) * (DEPTH - 1))
