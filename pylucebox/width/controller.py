"""The policy of `verify_width=0`: what each cycle drafts and verifies, so that tokens come fastest.

Two layers. Counting (`acceptance`, `choice`) tells how many drafts pay on average. Where the MTP block's probabilities
foretell more than the counts, `calibration` makes chances of them, and the width follows each single draft: one more is
made while `lookahead` says that its time may be worth it, and as many are verified as pay for their rows. Time is worth
what it recently brought.

A `Ledger` bounds what all this can lose against decoding without MTP, and `Credits` pay for looking again at what was
given up, so that no verdict is final. Nothing unfavourable is kept from one request to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, Final

from pylucebox._errors import InvalidArgumentError
from pylucebox._stats import MAX_DRAFT
from pylucebox.width.acceptance import Acceptance, expected_tokens
from pylucebox.width.breakeven import tokens_to_earn_back
from pylucebox.width.calibration import Calibrator
from pylucebox.width.choice import Price, best_of, rates_of, worth_knowing
from pylucebox.width.costs import CostModel
from pylucebox.width.exploration import Credits
from pylucebox.width.ledger import Ledger
from pylucebox.width.lookahead import Lookahead, mood_of
from pylucebox.width.policy import MAX_WIDTH, CycleContext, CycleObservation, CyclePlan, WidthCosts
from pylucebox.width.report import Tally
from pylucebox.width.sequence import SequenceState
from pylucebox.width.telemetry import WidthTelemetry

__all__ = ["AdaptiveWidth"]

_BUCKETS: Final = (2048, 8192, 32768, 131072)  # context lengths between which costs are kept apart
_OWN_SHARE: Final = 0.01  # of a cycle, that thinking about it may take
_OWN_VOUCHER_NS: Final = 1_000_000  # at the start of a request, where thinking pays most
_OWN_PLENTY_NS: Final = 500_000  # with so much saved up, nothing is put off
_REFRESH: Final = 4  # cycles that are learned from, for each time that the look-ahead is brought up to date
_ADVANCE: Final = 4.0  # drafts that exploration may owe
_SURE: Final = 0.7  # chance of a chain from which it is worth seeing more of it
_ASK_US: Final = 30.0  # what a look at the drafts takes, call and return through Python
_MOST_TRIALS: Final = 2  # of a width that was never timed, in a request
_MOST_ANCHORS: Final = 3  # cycles to time one of the first widths on a machine nothing is known of
_HOPE: Final = 0.35  # of the way to its guessed price, an untimed width is priced
_LEAD: Final = 1.01
_OUTLIER: Final = 1.5  # times its price, the most a cycle counts as

_PLAIN: Final = CyclePlan(1, 0)


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
        self._models: dict[tuple[int, int], CostModel] = {}
        self._model = CostModel(costs)
        self._calibrator = Calibrator()
        self._max_width = MAX_WIDTH
        self._carried = Acceptance()
        self._best_speed = 0.0  # tokens per us of an earlier request
        self._sequences: dict[int, SequenceState] = {}
        self._start()

    # ---- requests

    def begin(self, n_seq: int, max_width: int) -> None:  # noqa: ARG002 - cycles say how many take part
        """Start a request or a batch of requests."""
        self._max_width = max_width
        if self._sequences:
            first = self._sequences[min(self._sequences)]
            self._carried = first.acceptance.successor()
        self._calibrator.begin()
        self._start()

    def _start(self) -> None:
        self._sequences = {}
        self._ledger = Ledger()
        self._credits = Credits(self._model.prices.draft[MAX_DRAFT])
        self._lookahead = Lookahead()
        self._tally = Tally()
        self._anchors = [0] * MAX_WIDTH
        self._trials = [0] * MAX_WIDTH
        self._uses_probs = True
        self._joint = 0
        self._joint_looks = False
        self._planned: set[int] = set()
        self._members: set[int] = set()
        self._pass_tokens = 0
        self._n_observed = 0
        self._spare_ns = float(_OWN_VOUCHER_NS)
        self._light = False
        self._n_full = 0
        prices = self._model.prices
        rates = rates_of(self._carried.rates(), MAX_DRAFT, prices)
        k = max(range(len(rates)), key=rates.__getitem__)
        tokens = expected_tokens(self._carried.rates())[k]
        self._price = Price(tokens, tokens / rates[k])
        self._lookahead.refresh_all(self._price.per_us(prices.verify[0]), prices)

    def load_costs(self, costs: WidthCosts) -> None:
        """Take measured costs in place of all that is known of costs so far. Call it between requests."""
        self._models.clear()
        self._model = CostModel(costs)
        self._start()

    def worth_drafting(self, prompt_tokens: int, max_tokens: int) -> str | None:
        """Return None, or why a request of this size should do without MTP."""
        per_token = self._model.prefill_us_per_token
        if per_token <= 0.0 or not self._model.known:
            return None
        prices = self._model.prices
        plain_us = prices.verify[0]
        speed = max(self._best_speed, *rates_of(self._carried.rates(), MAX_DRAFT, prices))
        needed = tokens_to_earn_back(prompt_tokens, per_token, plain_us, speed)
        if needed is None:  # then only if the best conceivable text would not do either
            ideal = max(rates_of([1.0] * MAX_DRAFT, MAX_DRAFT, prices))
            needed = tokens_to_earn_back(prompt_tokens, per_token, plain_us, ideal)
        if needed is not None and max_tokens >= needed:
            return None
        after = "never" if needed is None else f"after about {needed:.0f} tokens"
        return (
            f"a prompt of {prompt_tokens} tokens takes longer with MTP, which is earned back {after}, and max_tokens is"
            f" {max_tokens}"
        )

    # ---- planning

    def choose(self, seq: int, context: CycleContext) -> int:
        """Return the width of the next cycle by counting, for callers that cannot show probabilities."""
        self._uses_probs = False
        return self.plan(seq, context).width

    def plan(self, seq: int, context: CycleContext) -> CyclePlan:
        """Return what the next cycle should do for a sequence."""
        began = self._clock()
        state = self._sequences.get(seq)
        if state is None or context.n_past < state.n_past:  # a new request took the place of a finished one
            state = self._sequences[seq] = SequenceState(self._carried.successor())
        if not self._planned or seq in self._planned:
            self._open_pass(context)
        self._planned.add(seq)
        state.n_past = context.n_past
        state.chances, state.stop, state.reason = [], 0, "price"
        widest = min(context.max_width, context.max_tokens_left, MAX_WIDTH // max(1, context.n_active))
        state.limit = max(0, widest - 1)
        if state.limit == 0:
            state.reason = "limit"
            plan = _PLAIN
        elif context.n_active > 1:
            plan = self._plan_joint(state, context)
        else:
            plan = self._plan_alone(state)
        self._spare_ns -= self._clock() - began
        return plan

    def _open_pass(self, context: CycleContext) -> None:
        """Start a cycle; one that was never observed is forgotten."""
        self._planned.clear()
        self._pass_tokens = self._n_observed = 0
        self._joint = -1
        self._light = self._spare_ns < 0.0
        if self._light:
            return
        bucket = sum(context.n_past >= edge for edge in _BUCKETS)
        key = (context.n_active, bucket)
        model = self._models.get(key)
        if model is None:
            model = self._models[key] = self._model.relative() if self._models else self._model
        self._model = model

    def _affordable(self, limit: int) -> int:
        """Return the most drafts that the ledger allows."""
        verify, draft, reject = self._model.prices
        room = self._ledger.room_us(verify[0])
        k = limit
        while k and verify[k] + draft[k] + reject - verify[0] > room:
            k -= 1
        return k

    def _plan_alone(self, state: SequenceState) -> CyclePlan:
        untimed = self._untimed(state.limit)
        if untimed is not None:
            state.reason = "cold start"
            return CyclePlan(untimed + 1, untimed)
        state.limit = self._affordable(state.limit)
        if state.limit == 0:
            state.reason = "ledger"
            return self._parked(state, ask=False)
        prices = self._model.prices
        if self._uses_probs and self._calibrator.better:
            if not self._light:
                state.recent.refresh()
                self._n_full += 1
            if not self._light and (self._spare_ns > _OWN_PLENTY_NS or self._n_full % _REFRESH == 0):
                self._lookahead.refresh(self._price.per_us(prices.verify[0]), prices)
            if self._lookahead.threshold[0][state.mood] > 1.0:
                return self._parked(state, ask=True)
            first = self._without_asking(state, 1)
            return CyclePlan(first + 1, first, True)
        if not self._light:
            rates = rates_of(state.acceptance.rates(), state.limit, prices)
            state.k = best_of(rates, state.k)
            untimed = self._hopeful(state, rates)
            if untimed is not None:
                return CyclePlan(untimed + 1, untimed)
        k = min(state.k, state.limit)
        n_draft = k
        if not self._light and k < state.limit:
            draft = prices.draft
            wanted = worth_knowing(state.acceptance, k, state.limit, prices)
            if wanted > k and self._credits.pay_value(draft[wanted] - draft[k]):
                n_draft = wanted
            elif self._looks(state, k):
                n_draft = k + 1
        return CyclePlan(k + 1, n_draft)

    def _parked(self, state: SequenceState, *, ask: bool) -> CyclePlan:
        """Verify nothing, but draft once where the floor of exploration can pay."""
        return CyclePlan(1, 1, ask) if self._looks(state, 0) else _PLAIN

    def _looks(self, state: SequenceState, depth: int) -> bool:
        """Pay for a draft after `depth` others that seems to be worth nothing: what is known of it may be outdated."""
        draft = self._model.prices.draft
        price_us = draft[depth + 1] - draft[depth]
        # After one that would have held, look again at once: easier text has perhaps begun.
        return self._credits.pay_floor(price_us, debt_us=_ADVANCE * price_us if state.hopes else 0.0)

    def _untimed(self, limit: int) -> int | None:
        """Return one of the first widths to time on a machine that nothing is known of."""
        if self._model.source != "none":
            return None
        for k in (min(2, limit), 0, limit):
            if not self._model.timed(k + 1) and self._anchors[k] < _MOST_ANCHORS:
                self._anchors[k] += 1
                return k
        return None

    def _hopeful(self, state: SequenceState, rates: Sequence[float]) -> int | None:
        """Return a width that was never timed and, priced with some hope, would be the fastest."""
        verify, draft, reject = self._model.prices
        best = max(rates)
        tokens = expected_tokens(state.acceptance.rates())
        timed_us = verify[0]
        for k in range(1, len(rates)):
            if self._model.timed(k + 1):
                timed_us = verify[k]
                continue
            price = timed_us + _HOPE * (verify[k] - timed_us) + draft[k] + reject
            if self._trials[k] < _MOST_TRIALS and tokens[k] / price > _LEAD * best:
                self._trials[k] += 1
                return k
        return None

    def _plan_joint(self, state: SequenceState, context: CycleContext) -> CyclePlan:
        """Return the share of a sequence in a pass of several, which all verify the same width."""
        if self._joint < 0:
            self._joint = self._choose_joint(state, context)
            draft = self._model.prices.draft
            # One more step of the common chain, paid once, shows a draft of each sequence.
            deeper = min(self._joint + 1, MAX_DRAFT)
            self._joint_looks = self._credits.pay_floor(draft[deeper] - draft[deeper - 1])
        k = min(self._joint, state.limit)
        return CyclePlan(k + 1, min(k + self._joint_looks, state.limit))

    def _choose_joint(self, state: SequenceState, context: CycleContext) -> int:
        verify, draft, reject = self._model.prices
        n = context.n_active
        texts = [self._sequences[seq] for seq in self._members if seq in self._sequences] or [state]
        widest = min(context.max_width, MAX_WIDTH // n)
        room = self._ledger.room_us(verify[n - 1])
        expected = [(expected_tokens(text.acceptance.rates()), text) for text in texts]
        rates = []
        for k in range(widest):
            took = verify[n * (k + 1) - 1] + draft[k]
            tokens = 0.0
            for curve, text in expected:
                tokens += curve[min(k, text.limit)]
                reach = curve[k] - curve[k - 1] if k else 1.0
                took += (1.0 - reach) * reject
            if k and took - verify[n - 1] > room:
                break
            rates.append(tokens / took)
        return best_of(rates, state.k)

    # ---- looking at drafts

    def decide(self, seq: int, probs: Sequence[float]) -> tuple[int, int]:
        """Look at the drafts made so far; return the rows to verify and the drafts to make before asking again."""
        began = self._clock()
        state = self._sequences[seq]
        chances = state.chances = self._calibrator.chances(probs, state.recent)
        threshold, limit = self._lookahead.threshold, state.limit
        reach, stop = 1.0, 0
        for depth, chance in enumerate(chances, 1):
            reach *= chance
            if depth >= limit or reach < threshold[depth][mood_of(chance)]:
                stop = depth
                break
        if not stop:
            n_made = len(chances)
            n_more = self._without_asking(state, n_made + 1) - n_made
            self._spare_ns -= self._clock() - began
            return n_made + 1, n_more
        if stop == len(chances) < limit and reach > _SURE and self._looks(state, stop):
            self._spare_ns -= self._clock() - began
            return stop + 1, 1
        state.stop = stop
        k = self._worth_verifying(chances, limit)
        if not k:
            self._spare_ns -= self._clock() - began
        return k + 1, 0

    def _without_asking(self, state: SequenceState, depth: int) -> int:
        """Return how deep to draft when `depth` is sure: on while a look costs more than the drafts it would spare."""
        draft = self._model.prices.draft
        while depth < state.limit and (1.0 - state.goes_on[depth]) * (draft[depth + 1] - draft[depth]) < _ASK_US:
            depth += 1
        return depth

    def _worth_verifying(self, chances: Sequence[float], limit: int) -> int:
        """Return how many of the drafts pay for their rows."""
        verify, _, reject = self._model.prices
        price = self._price.per_us(verify[0])
        best, best_gain, tokens, reach = 0, 0.0, 0.0, 1.0
        for k, chance in enumerate(chances[:limit], 1):
            reach *= chance
            tokens += reach
            gain = tokens - price * (verify[k] - verify[0] + (1.0 - reach) * reject)
            if gain > best_gain:
                best, best_gain = k, gain
        return best

    # ---- learning

    def observe(self, seq: int, observation: CycleObservation) -> None:
        """Learn from a finished cycle."""
        began = self._clock()
        state = self._sequences.get(seq)
        if state is None:
            state = self._sequences[seq] = SequenceState(self._carried.successor())
        took_us = max(1.0, observation.draft_us + observation.verify_us + observation.rollback_us)
        n_tokens = len(observation.tokens) or observation.n_accepted + 1
        n_active = max(1, observation.n_active)
        self._n_observed += 1
        self._pass_tokens += n_tokens
        self._tally.add(observation, n_tokens, state.reason)
        if self._n_observed >= n_active:
            self._close_pass(observation, took_us)
        if self._light:
            state.shadows.clear()
            self._spare_ns -= self._clock() - began
            return
        if observation.n_drafted and not observation.draft_probs:
            self._uses_probs = False
        elif observation.n_drafted:
            self._uses_probs = True
        self._learn_labels(state, observation)
        if observation.draft_probs:
            chances = state.chances
            if len(chances) != observation.n_drafted:
                chances = self._calibrator.chances(observation.draft_probs, state.recent)
            self._lookahead.learn(chances, state.mood)
            state.mood = mood_of(chances[0])
            state.keep_habit()
        self._spare_ns -= self._clock() - began

    def _learn_labels(self, state: SequenceState, observation: CycleObservation) -> None:
        rates = list(state.acceptance.rates())
        state.hopes = False
        for label in state.labels(observation):
            state.acceptance.learn(label.depth, label.held)
            state.recent.learn(label.held)
            if label.probability is not None:
                self._calibrator.learn(label.depth, label.probability, label.odds, label.held, rates[label.depth])
            self._tally.label(label.depth, label.held)
            state.hopes = label.held and label.depth >= observation.n_verified

    def _close_pass(self, observation: CycleObservation, took_us: float) -> None:
        """Account for a cycle once all its sequences have reported."""
        model, n_active = self._model, max(1, observation.n_active)
        verify, draft, reject = self._model.prices
        n_drafted, n_rows = observation.n_drafted, max(1, observation.n_rows)
        if n_rows > n_active:
            price = (verify[min(n_rows, MAX_WIDTH) - 1] + draft[n_drafted] + reject) * _OUTLIER
            plain_us = verify[min(n_active, MAX_WIDTH) - 1]
            self._ledger.drafted(min(took_us, price), self._pass_tokens / n_active, plain_us)
        else:
            self._ledger.plain(observation.draft_us, self._pass_tokens / n_active, verify[0])
        counted_us = min(took_us, _OUTLIER * (verify[min(n_rows, MAX_WIDTH) - 1] + draft[n_drafted] + reject))
        self._price.earn(self._pass_tokens, counted_us)
        self._credits.earn(counted_us, draft[MAX_DRAFT])
        self._spare_ns = min(self._spare_ns + _OWN_SHARE * 1000.0 * took_us, float(_OWN_VOUCHER_NS))
        self._members, self._planned = set(self._planned), set()
        self._pass_tokens = self._n_observed = 0
        if self._light or observation.shared_prefill:
            return
        model.learn_verify(n_rows, observation.verify_us, built=observation.graph_built)
        if n_drafted and not observation.draft_graph_built:
            model.learn_draft(n_drafted, observation.draft_us)
        if n_rows > n_active and not observation.graph_built:
            model.learn_rest(observation.n_accepted < observation.n_verified, observation.rollback_us)

    # ---- keeping

    def telemetry(self) -> WidthTelemetry:
        """Return the figures of the request so far."""
        first = self._sequences[min(self._sequences)] if self._sequences else SequenceState(self._carried)
        verify, draft, reject = self._model.prices
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
        models = [[*key, model.snapshot()] for key, model in self._models.items()]
        return {
            "version": 1,
            "models": models,
            "model": self._model.snapshot(),
            "calibrator": self._calibrator.snapshot(),
        }

    def load(self, stored: Mapping[str, Any]) -> None:
        """Continue from a snapshot. Call it between requests.

        Raises
        ------
        InvalidArgumentError
            It is no snapshot of this version; nothing has changed then.
        """
        try:
            if stored["version"] != 1:
                raise ValueError("another version")
            models = {(int(n), int(bucket)): CostModel.restored(model) for n, bucket, model in stored["models"]}
            model = CostModel.restored(stored["model"])
            calibrator = Calibrator.restored(stored["calibrator"])
        except (KeyError, TypeError, ValueError) as error:
            allowed = "a dictionary as AdaptiveWidth.snapshot makes it"
            raise InvalidArgumentError(argument="stored", value=stored, allowed=allowed) from error
        self._models, self._model, self._calibrator = models, model, calibrator
        self._start()
