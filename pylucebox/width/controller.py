"""The policy of `verify_width=0`: what each cycle drafts and verifies, so that tokens come fastest.

Two layers. Counting (`acceptance`, `choice`) tells how many drafts pay on average. Where the MTP block's probabilities
foretell more than the counts, `calibration` makes chances of them, and the width follows each single draft: one more is
made while `lookahead` says that its time may be worth it, and as many are verified as pay for their rows. Time is worth
what it recently brought.

Where plain steps are short both would take longer than they spare: drafts come in spurts there (`short_steps`).

A `Ledger` bounds what all this can lose against decoding without MTP, and `Credits` pay for looking again at what was
given up. Nothing unfavourable that a text showed is kept for the next; of machine and model it fades.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, Final

from pylucebox._stats import MAX_DRAFT
from pylucebox.width.acceptance import Acceptance, expected_tokens
from pylucebox.width.book import CostBook
from pylucebox.width.breakeven import Experience, foretold_saving, reason_against
from pylucebox.width.brief_steps import BRIEF_STEP_US, BriefSteps
from pylucebox.width.calibration import Calibrator
from pylucebox.width.choice import PLENTY, Price, affordable, best_of, rates_of, worth_knowing, worth_verifying
from pylucebox.width.costs import Prices
from pylucebox.width.exploration import Credits
from pylucebox.width.hints import TextHints
from pylucebox.width.joint import JointChoice
from pylucebox.width.ledger import Ledger
from pylucebox.width.lookahead import Lookahead
from pylucebox.width.looks import best_look, rows_spared_us, sure_drafts
from pylucebox.width.passes import Pass
from pylucebox.width.plain_steps import PlainSteps
from pylucebox.width.policy import MAX_WIDTH, CycleContext, CycleObservation, CyclePlan, WidthCosts
from pylucebox.width.report import Tally
from pylucebox.width.sequence import SequenceState
from pylucebox.width.short_steps import SHORT_STEP_US, ShortSteps
from pylucebox.width.snapshots import restored_parts, snapshot_of
from pylucebox.width.spurts import Spurts, StepCosts
from pylucebox.width.surprise import Foretold
from pylucebox.width.telemetry import WidthTelemetry
from pylucebox.width.thrift import Thrift

__all__ = ["AdaptiveWidth"]

_ADVANCE: Final = 4.0  # drafts that exploration may owe
_SURE: Final = 0.9  # chance of a chain from which it is worth seeing more of it
_ASK_US: Final = 30.0  # what a look at the drafts takes, call and return through Python
_ASK_NEWS: Final = 0.1  # weight of a look in what deciding takes
_SHADE: Final = 0.9  # of a chance counts when one more draft is considered
_CAUTION: Final = 0.6  # plain steps that may still be lost where a chance counts half
_LEAST: Final = 0.7  # that is left of a chance, so that a request can get out of where nothing may be lost
_SPEED_TOKENS: Final = 32  # that a request must have for its speed to count
_OUTLIER: Final = 1.5  # times its price, the most a cycle counts as

_PLAIN: Final = CyclePlan(1, 0)
_LOOK: Final = CyclePlan(1, 1, True)


class AdaptiveWidth:
    """Adaptive verify width; a `DraftPolicy`.

    Parameters
    ----------
    costs
        What cycles cost, from a sweep or a file. Without them the first cycles of the first request find out.
    clock
        Nanoseconds, to keep the policy's own time below a hundredth of the cycles'.
    """

    def __init__(self, costs: WidthCosts | None = None, *, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._clock = clock
        self._book = CostBook(costs)
        self._calibrator = Calibrator()
        self._carried = Acceptance()
        self._sequences: dict[int, SequenceState] = {}
        self._speed_seen = 0.0  # tokens per us of earlier requests
        self._decide_us = 0.0  # what a decision took lately
        self._plain_steps = PlainSteps()
        self._foretold = Foretold()
        self._step_costs = StepCosts()
        self._experience = Experience()
        self._is_told = False
        self.load_device(on_gpu=costs is not None and costs.on_gpu)

    # ---- requests

    def begin(self, n_seq: int, max_width: int) -> None:  # noqa: ARG002 - each cycle says how many take part
        """Start a request or a batch of requests."""
        if self._sequences:
            self._carried = self._sequences[min(self._sequences)].acceptance.successor()
        tokens, took_us = self._tokens + self._brief_steps.n_tokens, self._took_us + self._brief_steps.took_us
        if tokens >= _SPEED_TOKENS:
            self._learn_speed(tokens / took_us)
        if self._short_steps.n_tokens:
            self._experience.learn(self._short_steps.saved_steps, self._short_steps.n_tokens)
        self._calibrator.begin()
        self._start()

    def _start(self) -> None:
        self._model = self._book.at(1, 0)
        self._tally = Tally()
        self._open_accounts()
        self._sequences = {}
        self._thrift = Thrift()
        self._trials = [0] * MAX_WIDTH
        self._uses_probs = True
        self._tokens = 0
        self._took_us = 0.0
        self._joint = JointChoice()
        self._caution = 1.0  # by which chances are lowered where little may be lost
        self._pass = Pass()
        self._members: list[int] = []  # of the last pass
        self._plain_steps.begin_request()

    def _open_accounts(self) -> None:
        """Start what is kept in microseconds."""
        prices = self._model.prices
        rates = rates_of(self._carried.rates(), MAX_DRAFT, prices)
        k = best_of(rates, 0)
        tokens = expected_tokens(self._carried.rates())[k]
        self._price = Price(tokens, tokens / rates[k])
        self._is_brief = self._on_gpu and prices.verify[0] < BRIEF_STEP_US
        self._is_short = not self._on_gpu and self._model.known and prices.verify[0] < SHORT_STEP_US
        self._lookahead = Lookahead()
        if not self._is_brief:
            self._lookahead.refresh_all(self._price.per_us(prices.verify[0]), prices)
        self._ledger = Ledger()
        self._short_steps = ShortSteps(self._book, self._plain_steps, self._step_costs, self._ledger, self._tally)
        self._brief_steps = BriefSteps(self._book, self._ledger, self._tally)
        self._credits = Credits(prices.draft[MAX_DRAFT])

    def load_costs(self, costs: WidthCosts) -> None:
        """Take measured costs in place of all that is known of costs so far. Call it between requests."""
        self._book = CostBook(costs)
        self.load_device(on_gpu=costs.on_gpu)
        if costs.source == "sweep":
            self._plain_steps.ask_for_first(costs.verify_us[0])

    def load_device(self, *, on_gpu: bool) -> None:
        """Learn what computes where no costs tell. Call it between requests."""
        self._on_gpu = on_gpu
        self._plain_steps.expect(on_gpu=on_gpu)
        self._start()

    def load_joint_costs(self, n_active: int, costs: WidthCosts) -> None:
        """Take measured costs of cycles of several sequences, after those that `load_costs` takes."""
        self._book.add(n_active, costs)

    def worth_drafting(self, prompt_tokens: int, max_tokens: int) -> str | None:
        """Return None, or why a request of this size should do without MTP."""
        model, rates = self._book.at(1, prompt_tokens), self._carried.rates()
        saved = self._experience.hoped if self._is_short and self._is_told else None
        return reason_against(prompt_tokens, max_tokens, model, saved=saved, acceptance=rates, speed=self._speed_seen)

    def wants_logprobs(self, *, drafts: bool) -> bool:
        """Tell whether the trunk's own probabilities are of use here: of requests that draft, or that were refused."""
        self._is_told = True  # who asks can tell
        return self._is_short if drafts else not self._on_gpu

    def overhear(self, logprobs: Sequence[float], n_tokens: int) -> None:
        """Take how probable the trunk held some of the tokens of a request that was refused, natural logarithms."""
        prices = self._model.prices
        self._foretold.rest(n_tokens)
        self._step_costs.rest(n_tokens, prices)
        saved_steps = foretold_saving(logprobs, n_tokens, self._foretold, self._step_costs.of(prices))
        if self._is_short:
            self._experience.learn(saved_steps, n_tokens)
        elif n_tokens >= _SPEED_TOKENS:
            self._learn_speed(n_tokens / ((n_tokens - saved_steps) * prices.verify[0]))

    def _learn_speed(self, speed: float) -> None:
        self._speed_seen = 0.5 * (self._speed_seen + speed) if self._speed_seen else speed

    def rests(self, seq: int) -> int:
        """Return for how many cycles a sequence will draft nothing, so that it need not be asked."""
        return self._short_steps.rests(self._sequences.get(seq) or self._state_of(seq, 0)) if self._is_short else 0

    # ---- planning

    def choose(self, seq: int, context: CycleContext) -> int:
        """Return the width of the next cycle by counting, for callers that cannot show probabilities."""
        self._uses_probs = False
        return self.plan(seq, context).width

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:
        """Return what the next cycle should do for a sequence."""
        steps = self._simple_steps(context.n_active, context.logprobs)
        if steps is not None:
            return steps.plan(self._state_of(seq, context.n_past), context)
        began = self._clock()
        plan = self._plan(seq, context)
        self._thrift.spend(self._clock() - began)
        return plan

    def _simple_steps(self, n_active: int, logprobs: object) -> BriefSteps | ShortSteps | None:
        """Return what plans and accounts for cycles that are too short for anything else."""
        if n_active != 1:
            return None
        if self._is_brief and self._model.source != "none":
            return self._brief_steps
        return self._short_steps if self._is_short and logprobs else None

    def _state_of(self, seq: int, n_past: int, hints: TextHints | None = None) -> SequenceState:
        state = self._sequences.get(seq)
        if state is None or n_past < state.n_past:  # a new request took the place of a finished one
            spurts = Spurts(self._foretold, self._step_costs)
            state = self._sequences[seq] = SequenceState(self._carried.successor(), hints, spurts)
        return state

    def _plan(self, seq: int, context: CycleContext) -> CyclePlan:
        _, n_past, n_left, max_width, n_active, hints, _ = context
        state = self._state_of(seq, n_past, hints)
        members = self._pass.members
        opens = not members or seq in members
        if opens:
            if members or self._pass.n_observed:  # a pass that was not observed to its end is forgotten
                self._pass = Pass()
                members = self._pass.members
            self._thrift.next_cycle()
            if not self._thrift.light:
                self._model = self._book.at(n_active, n_past)
        members.append(seq)
        state.plan(n_past, min(max_width, n_left, MAX_WIDTH // n_active) - 1)
        if n_active > 1:
            if opens:
                self._choose_joint(state, n_active, max_width)
            return self._joint.plan(state.limit)
        return self._plan_alone(state) if state.limit else _PLAIN

    def _plan_alone(self, state: SequenceState) -> CyclePlan:
        timing = self._timing(state)
        if timing is not None:
            return timing
        prices, room = self._model.prices, self._ledger.room
        state.limit = affordable(state.limit, prices, room * prices.verify[0] - self._plain_steps.catch_up_us)
        self._caution = _SHADE * max(_LEAST, room / (room + _CAUTION))
        if state.limit == 0:
            state.reason = "ledger"  # not even a look: it would take what the next draft has to be paid from
            return _PLAIN
        if self._uses_probs and self._calibrator.better and not self._is_brief:
            if not self._thrift.light:
                state.recent.refresh()
            if self._thrift.generous:
                self._lookahead.refresh(self._price.per_us(prices.verify[0]), prices)
            # A chain made in one launch is one decision, of which the mean gain counts where little is at stake.
            shade = self._caution if self._model.launch_us and room > PLENTY else 1.0
            if not self._goes_on(state, 0, state.open_chain(), 1.0 / shade):
                return self._parked(state)
            first = self._without_asking(state, 1)
            return CyclePlan(first + 1, first, first < state.limit or not self._model.launch_us or self._asks(state))
        if self._is_brief or self._thrift.light:
            k = state.brief.choose(state.limit, prices) if self._is_brief else min(state.k, state.limit)
            return CyclePlan(k + 1, k)
        return self._plan_by_counts(state, prices)

    def _timing(self, state: SequenceState) -> CyclePlan | None:
        """Return a cycle to be run for its time, when one is due."""
        untimed = self._model.first_untimed(state.limit, self._trials)
        if untimed is not None:
            state.reason = "cold start"
            self._pass.measures = True
            return CyclePlan(untimed + 1, untimed)
        if self._plain_steps.asked(self._model.prices.verify[0]):
            state.reason = "anchor"
            return _PLAIN
        return None

    def _plan_by_counts(self, state: SequenceState, prices: Prices) -> CyclePlan:
        rates = rates_of(state.acceptance.rates(), state.limit, prices)
        k = state.k = best_of(rates, state.k)
        n_draft = k
        if k < state.limit:
            wanted = worth_knowing(state.acceptance, k, state.limit, prices)
            if wanted > k and self._credits.pay_value(prices.draft[wanted] - prices.draft[k]):
                n_draft = wanted
            elif self._looks(state, k):
                n_draft = k + 1
        return CyclePlan(k + 1, n_draft)

    def _parked(self, state: SequenceState) -> CyclePlan:
        """Verify nothing, but draft once where the floor of exploration can pay."""
        prices = self._model.prices
        may = prices.draft[1] + self._plain_steps.catch_up_us <= self._ledger.room_us(prices.verify[0])
        return _LOOK if may and self._looks(state, 0) else _PLAIN

    def _looks(self, state: SequenceState, depth: int) -> bool:
        """Pay for a draft after `depth` others that seems to be worth nothing: what is known of it may be outdated."""
        draft = self._model.prices.draft
        price_us = draft[depth + 1] - draft[depth]
        # After one that would have held, look again at once: easier text has perhaps begun.
        return self._credits.pay_floor(price_us, debt_us=_ADVANCE * price_us if state.hopes else 0.0)

    def _choose_joint(self, state: SequenceState, n_active: int, max_width: int) -> None:
        """Choose what all sequences of a pass do, of which `state` is the first to plan."""
        joint, prices = self._joint, self._model.prices
        room_us = self._ledger.room_us(prices.verify[min(n_active, MAX_WIDTH) - 1]) - self._plain_steps.catch_up_us
        if self._thrift.light:
            joint.stay(n_active, prices, room_us)
        elif self._plain_steps.asked(prices.verify[0]):
            joint.rest()
        else:
            texts = [self._sequences[seq] for seq in self._members if seq in self._sequences] or [state]
            known = [(text.acceptance.rates(), text.limit) for text in texts]
            widest = min(max_width, MAX_WIDTH // n_active)
            joint.choose(known, n_active, widest, prices, room_us)
            joint.look(widest, prices, room_us, self._credits)

    # ---- looking at drafts

    def decide(self, seq: int, probs: Sequence[float], tokens: Sequence[int] = ()) -> tuple[int, int]:
        """Look at the drafts made so far; return the rows to verify and the drafts to make before asking again."""
        began = self._clock()
        decision = self._decide(self._sequences[seq], probs, tokens)
        self._pass.n_launches += decision[1] > 0
        self._thrift.spend(took_ns := self._clock() - began)
        self._decide_us += _ASK_NEWS * (took_ns / 1000.0 - self._decide_us)
        return decision

    def _decide(self, state: SequenceState, probs: Sequence[float], tokens: Sequence[int]) -> tuple[int, int]:
        n_seen, reach = len(state.chances), state.reach
        state.look(self._calibrator, probs, tokens)
        limit, n_made = state.limit, len(state.chances)
        stop = self._stop(state, n_seen, reach)
        if not stop:
            return n_made + 1, self._without_asking(state, n_made + 1) - n_made
        if stop == n_made < limit and state.reach > _SURE and self._looks(state, stop):
            return stop + 1, 1
        state.stop = stop
        prices = self._model.prices
        price = self._price.per_us(prices.verify[0])
        return worth_verifying(state.chances[:limit], prices, price, self._ledger.room) + 1, 0

    def _stop(self, state: SequenceState, n_seen: int, reach: float) -> int:
        """Return after which of the drafts behind `n_seen` another is not worth its time; 0 if it is after all."""
        for depth in range(n_seen + 1, len(state.chances) + 1):
            reach *= state.chances[depth - 1]
            if depth >= state.limit or not self._goes_on(state, depth, state.moods[depth], reach):
                return depth
        return 0

    def _goes_on(self, state: SequenceState, depth: int, mood: int, reach: float) -> bool:
        """Tell whether another draft is worth its time after `depth` that hold with the chance `reach`."""
        reach *= self._caution
        luck = state.luck(depth)
        if luck:
            return self._lookahead.worth(depth, mood, reach, luck * self._calibrator.luck_weight)
        return reach >= self._lookahead.threshold[depth][mood]

    def _without_asking(self, state: SequenceState, depth: int) -> int:
        """Return how deep to draft when `depth` is sure: on while a look costs more than the drafts it would spare."""
        draft, launch_us = self._model.prices.draft, self._model.launch_us
        if launch_us:
            return best_look(state.goes_on, draft, depth, state.limit, _ASK_US + self._decide_us + launch_us)
        return sure_drafts(state.goes_on, draft, depth, state.limit, _ASK_US)

    def _asks(self, state: SequenceState) -> bool:
        """Tell whether a look at all drafts of a cycle, made in one launch, may spare rows worth its time."""
        rates, verify = state.acceptance.rates(), self._model.prices.verify
        return rows_spared_us(state.goes_on, rates, verify, state.limit) > _ASK_US + self._decide_us

    # ---- learning

    def observe(self, seq: int, observation: CycleObservation) -> None:
        """Learn from a finished cycle."""
        state = self._sequences.get(seq) or self._state_of(seq, 0)  # a caller need not have planned
        steps = self._simple_steps(observation.n_active, observation.logprobs)
        if steps is not None:
            steps.observe(state, observation)
            return
        began = self._clock()
        tokens = observation.tokens
        n_tokens = len(tokens) or observation.n_accepted + 1
        self._tally.add(observation, n_tokens, state.reason)
        if self._pass.add(observation, n_tokens) >= observation.n_active:
            self._close_pass(observation)
        if self._is_brief and observation.n_active <= 1:
            state.brief.learn(observation.n_verified, observation.n_accepted)
        elif observation.n_drafted or state.shadows:
            if self._thrift.light:
                state.shadows.clear()
            else:
                self._learn_text(state, observation)
        else:
            state.hopes = False
        state.take(tokens)
        self._thrift.spend(self._clock() - began)

    def _learn_text(self, state: SequenceState, observation: CycleObservation) -> None:
        n_drafted = observation.n_drafted
        if n_drafted:
            self._uses_probs = bool(observation.draft_probs)
            if len(state.signs) < n_drafted and self._uses_probs:  # not shown before they were verified
                state.look(self._calibrator, observation.draft_probs, observation.draft_tokens)
        self._learn_labels(state, observation)
        if state.usual:
            self._lookahead.learn(state.usual, state.moods)
            state.stop = state.stop or (self._stop(state, 0, 1.0) if self._model.launch_us else 0)
            state.keep_habit()

    def _learn_labels(self, state: SequenceState, observation: CycleObservation) -> None:
        rates = state.acceptance.rates()  # what is learned below makes another list
        state.hopes = False
        for label in state.labels(observation):
            state.acceptance.learn(label.depth, label.held)
            state.recent.learn(label.held)
            if label.signs is not None:
                self._calibrator.learn(label.depth, label.signs, label.held, rates[label.depth])
            self._tally.label(label.depth, label.held)
            state.hopes = label.held and label.depth >= observation.n_verified

    def _close_pass(self, last: CycleObservation) -> None:
        """Account for a cycle once all its sequences have reported."""
        done, self._pass = self._pass, Pass()
        catch_up_us = self._plain_steps.catch_up_us if done.n_drafted else 0.0
        self._members = done.members
        took_us = last.draft_us + last.verify_us + last.rollback_us
        n_rows, n_active = max(1, last.n_rows), max(1, last.n_active)
        was_known = self._model.known
        self._thrift.earn(took_us)
        if was_known and not done.measures:  # finding out what a machine costs is not the text's fault
            self._account(done, last, max(1.0, took_us), catch_up_us)
        prices = self._model.prices
        counts = not done.n_drafted and self._plain_steps.plain(prices.verify[0])
        if done.n_drafted:
            self._plain_steps.drafted(None if last.draft_graph_built else last.draft_us - prices.draft[done.n_drafted])
        if last.shared_prefill:
            return
        captured = self._on_gpu and last.graph_built  # takes ten steps' time and more, and comes to an end
        if not captured and (n_rows > n_active or counts or not self._model.timed(n_rows)):
            self._model.learn_verify(n_rows, last.verify_us, built=last.graph_built)
        if done.n_drafted and not last.draft_graph_built:
            self._model.learn_draft(done.n_drafted, max(1.0, last.draft_us - catch_up_us), done.n_launches)
        if self._thrift.light:  # prices are learned all the same: with a wrong one nothing would ever be right
            return
        if n_rows > n_active and not last.graph_built:
            self._model.learn_rest(done.rejected, last.rollback_us)
        if not was_known and self._model.known:
            self._open_accounts()

    def _account(self, done: Pass, last: CycleObservation, took_us: float, catch_up_us: float) -> None:
        """Enter the time of a cycle and what it brought."""
        n_rows, n_active = max(1, last.n_rows), max(1, last.n_active)
        verify, _, draft, reject = self._model.prices
        drafts_us = draft[done.n_drafted] + catch_up_us
        price_us = verify[min(n_rows, MAX_WIDTH) - 1] + drafts_us + reject
        counted_us = min(took_us, _OUTLIER * price_us)
        # Each sequence of a plain pass gets one token for the price of the whole.
        n_each = done.n_tokens / n_active
        plain_us = verify[min(n_active, MAX_WIDTH) - 1]
        if n_rows > n_active:
            self._ledger.drafted(counted_us, n_each, plain_us)
        else:
            self._ledger.plain(min(last.draft_us, _OUTLIER * drafts_us), n_each, plain_us)
        self._price.earn(done.n_tokens, counted_us)
        self._credits.earn(counted_us, draft[MAX_DRAFT])
        if n_active == 1:
            self._tokens += done.n_tokens
            self._took_us += took_us

    # ---- keeping

    def telemetry(self) -> WidthTelemetry:
        """Return the figures of the request so far."""
        first = self._sequences[min(self._sequences)] if self._sequences else SequenceState(self._carried)
        verify, _, draft, reject = self._model.prices
        confidence, counts = self._calibrator.brier
        return self._tally.report(
            expected_acceptance=tuple(first.acceptance.rates()),
            verify_us=tuple(verify),
            draft_us=tuple(draft[1:]),
            reject_us=reject,
            price_tokens_per_ms=1000.0 * self._price.per_us(verify[0]),
            uses_confidence=self._uses_probs and self._calibrator.better,
            confidence_brier=confidence,
            counts_brier=counts,
            credit_us=self._credits.floor_us + self._credits.value_us,
            credit_spent_us=self._credits.spent_us,
            ledger_us=self._ledger.lost_us,
            ledger_max_us=self._ledger.worst_us,
            costs_source=self._model.source,
        )

    def snapshot(self) -> dict[str, Any]:
        """Return what outlives a request, for JSON: costs, and what probabilities mean. Texts are not part of it."""
        return snapshot_of(self._book, self._calibrator)

    def load(self, stored: Mapping[str, Any]) -> None:
        """Continue from a snapshot. Call it between requests.

        Raises
        ------
        InvalidArgumentError
            It is no snapshot of this version; nothing has changed then.
        """
        self._book, self._calibrator = restored_parts(stored)
        self._start()
