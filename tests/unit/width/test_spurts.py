"""Spurts of drafts on processors whose plain steps are short."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("hypothesis")

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pylucebox.width import AdaptiveWidth, CycleContext, CycleObservation, FixedWidth, WidthCosts
from pylucebox.width.breakeven import Experience
from pylucebox.width.costs import CostModel
from pylucebox.width.spurts import COLD_STEPS, Spurts, StepCosts
from pylucebox.width.surprise import Foretold

from ._drive import Ran, StoppedClock, Text, costs, drive, text

FEW = settings(max_examples=25, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])

TINY = costs(370.0, 160.0, 75.0)  # eight rows and seven drafts take five and a half plain steps
TWO_CORES = costs(230.0, 70.0, 45.0)
PRICES = CostModel(TINY).prices
OVERDRAFT = 6.0  # plain steps that a spurt may risk beyond what may be lost
SURE = 0.0
UNSURE = -2.0


def said(*parts: tuple[int, float, float], seed: int = 0) -> tuple[Text, list[float]]:
    """Return parts of so many tokens, how often their drafts hold, and how sure the trunk is of them."""
    logprobs = [logprob for n_tokens, _, logprob in parts for _ in range(n_tokens)]
    return text(*[(n_tokens, chance) for n_tokens, chance, _ in parts], seed=seed), logprobs


def run(policy: AdaptiveWidth, *parts: tuple[int, float, float], machine: WidthCosts = TINY, begin: bool = True) -> Ran:
    spoken, logprobs = said(*parts)
    return drive(policy, spoken, machine, logprobs=logprobs, begin=begin)


def adaptive(machine: WidthCosts = TINY) -> AdaptiveWidth:
    policy = AdaptiveWidth(machine, clock=StoppedClock())
    policy.wants_logprobs(drafts=True)
    policy.begin(1, 8)
    return policy


def spurts() -> Spurts:
    return Spurts(Foretold(), StepCosts())


# ---- when


def test_easy_text_is_drafted_after_a_few_tokens_as_wide_as_pays() -> None:
    widths = run(adaptive(), (200, 1.0, SURE)).verified()
    assert widths[:3] == [0, 0, 0]
    assert widths[3:10] == [7] * 7


def test_text_that_surprises_is_never_drafted() -> None:
    assert set(run(adaptive(), (400, 1.0, UNSURE)).verified()) == {0}


def test_text_whose_drafts_disappoint_is_left_alone_within_two_cycles() -> None:
    widths = run(adaptive(), (300, 0.0, SURE)).verified()
    drafted = [k for k in widths if k]
    assert 1 <= len(drafted) <= 2, "and what was lost is not put at risk again"


def test_spurt_ends_where_the_text_gets_hard_and_the_next_begins_where_it_gets_easy() -> None:
    ran = run(adaptive(TWO_CORES), (150, 1.0, SURE), (50, 0.1, UNSURE), (300, 1.0, SURE), machine=TWO_CORES)
    assert set(ran.verified(20, 140)) == {7}
    assert set(ran.verified(170, 200)) == {0}
    assert set(ran.verified(250, 490)) == {7}


def test_nothing_is_begun_for_a_few_tokens() -> None:
    assert set(run(adaptive(), (16, 1.0, SURE)).verified()) == {0}


def test_nothing_is_drafted_where_a_row_costs_a_step() -> None:
    assert set(run(adaptive(costs(370.0, 370.0, 90.0)), (300, 1.0, SURE)).verified()) == {0}


def test_without_the_trunks_probabilities_the_policy_is_what_it_was() -> None:
    spoken, _ = said((200, 0.6, SURE))
    assert max(drive(adaptive(), spoken, TINY).verified()) < 7


def test_machines_with_long_steps_are_not_concerned() -> None:
    policy = adaptive(costs(24_000, 3_500, 1_600))
    assert not policy.wants_logprobs(drafts=True)
    assert policy.wants_logprobs(drafts=False)
    assert policy.rests(0) == 0


# ---- what may be lost


@FEW
@given(
    parts=st.lists(st.tuples(st.integers(5, 150), st.floats(0.0, 1.0), st.floats(-3.0, 0.0)), min_size=1, max_size=6),
    plain=st.floats(200.0, 1900.0),
    row=st.floats(0.1, 0.9),
    draft=st.floats(0.02, 0.3),
    seed=st.integers(0, 99),
)
def test_loss_is_bounded_whatever_the_trunk_says(
    parts: list[tuple[int, float, float]], plain: float, row: float, draft: float, seed: int
) -> None:
    machine = costs(plain, row * plain, draft * plain)
    spoken, logprobs = said(*parts, seed=seed)
    ran = drive(adaptive(machine), spoken, machine, logprobs=logprobs)
    off = drive(FixedWidth(1), spoken, machine)
    assert ran.us <= 1.02 * off.us + (4 + OVERDRAFT + 1) * plain


def test_hard_text_costs_nothing_that_the_machine_shows() -> None:
    spoken, logprobs = said((500, 0.2, UNSURE))
    assert drive(adaptive(), spoken, TINY, logprobs=logprobs).us == drive(FixedWidth(1), spoken, TINY).us


# ---- no verdict is final


def test_drafts_are_tried_again_long_after_they_disappointed() -> None:
    policy = adaptive()
    for _ in range(4):
        run(policy, (200, 0.0, SURE))
    for _ in range(8):
        run(policy, (200, 0.0, UNSURE))
    assert max(run(policy, (200, 1.0, SURE)).verified()) == 7


def test_drafts_are_tried_again_on_a_machine_that_was_busy() -> None:
    policy = adaptive()
    spoken, logprobs = said((200, 1.0, SURE))
    for _ in range(6):
        drive(policy, spoken, TINY, logprobs=logprobs, disturb=lambda _, us: us * (2.5 if us > 1000 else 1.0))
    assert max(run(policy, (200, 1.0, SURE)).verified()) == 0, "drafts are too dear by now"
    for _ in range(12):
        run(policy, (500, 0.0, UNSURE))
    assert max(run(policy, (200, 1.0, SURE)).verified()) == 7


# ---- rests


def test_hard_text_need_not_be_thought_about() -> None:
    one = spurts()
    one.learn(0, 0, 20, [UNSURE] * 20)
    assert one.rests(PRICES) >= 12


def test_nothing_is_missed_by_a_rest() -> None:
    rng = random.Random(1)
    for _ in range(50):
        one, other = spurts(), spurts()
        history = [rng.choice((UNSURE, SURE)) for _ in range(30)]
        for each in (one, other):
            each.learn(0, 0, 30, history)
        for _ in range(one.rests(PRICES) - 1):  # the text cannot become easier than this
            other.learn(0, 0, 1, [SURE])
            assert other.choose(7, 500, PRICES, 4.0) == 0


def test_spurt_is_not_rested_in() -> None:
    one = spurts()
    one.learn(0, 0, 8, [SURE] * 8)
    assert one.rests(PRICES) == 0
    assert one.choose(7, 200, PRICES, 4.0) == 7
    assert one.rests(PRICES) == 0


def test_cycles_that_were_rested_in_are_counted_one_by_one() -> None:
    policy = adaptive()
    policy.plan(0, CycleContext(0, 10, 100, 8, logprobs=True))
    tokens = tuple(range(12))
    policy.observe(
        0,
        CycleObservation(
            seq=0, width=1, n_drafted=0, n_accepted=0, draft_probs=(), draft_us=0, verify_us=370, rollback_us=0,
            n_rows=1, graph_built=False, tokens=tokens, logprobs=(UNSURE,) * 12,
        ),
    )  # fmt: skip
    told = policy.telemetry()
    assert told.cycles == told.tokens == told.verified_histogram[0] == sum(dict(told.plain_reasons).values()) == 12


# ---- whether a request is worth it

TAXED = WidthCosts.from_dict({**TINY.as_dict(), "mtp_prefill_us_per_token": 35.0})


def refuse(policy: AdaptiveWidth, n_tokens: int, logprob: float) -> None:
    policy.begin(1, 8)
    policy.overhear([logprob] * (n_tokens // 4), n_tokens)


def test_hard_texts_make_requests_with_long_prompts_go_without_mtp() -> None:
    policy = adaptive(TAXED)
    assert policy.worth_drafting(100, 200) is None
    for _ in range(12):
        run(policy, (120, 0.1, UNSURE), machine=TAXED)
    policy.begin(1, 8)
    assert policy.worth_drafting(100, 200) is not None


@FEW
@given(
    history=st.lists(st.tuples(st.integers(1, 400), st.floats(-5.0, 0.0)), max_size=30),
    n_drafted=st.integers(0, 5),
)
def test_easy_texts_lift_every_refusal(history: list[tuple[int, float]], n_drafted: int) -> None:
    policy = adaptive(TAXED)
    for _ in range(n_drafted):
        run(policy, (100, 0.0, SURE), machine=TAXED)
    for n_tokens, logprob in history:
        refuse(policy, n_tokens, logprob)
    for _ in range(30):
        refuse(policy, 200, SURE)
    policy.begin(1, 8)
    assert policy.worth_drafting(100, 200) is None


def test_easy_texts_lift_a_refusal_where_steps_are_long_too() -> None:
    machine = WidthCosts.from_dict({**costs(24_000, 10_000, 1_600).as_dict(), "mtp_prefill_us_per_token": 200.0})
    policy = adaptive(machine)
    drive(policy, text((300, 0.55)), machine)
    policy.begin(1, 8)
    n_tokens = next(n for n in range(1, 100_000) if policy.worth_drafting(1000, n) is None)
    for _ in range(10):
        refuse(policy, 200, SURE)
    assert policy.worth_drafting(1000, n_tokens * 3 // 4) is None


def test_short_requests_tell_nothing() -> None:
    experience = Experience()
    experience.learn(5.0, 8)
    assert experience.saved == Experience().saved


def test_cold_caches_are_charged_once_a_spurt_ends() -> None:
    policy = adaptive()
    run(policy, (300, 0.0, SURE))
    lost_steps = policy.telemetry().ledger_us / 370.0
    assert lost_steps > COLD_STEPS
