"""What cycles cost here: per row count, shrunk to a line where it was seldom measured.

A verify step's time is kept by its rows, because kernels change with them: costs have cliffs and plateaus that no line
describes. Where measurements are few or old, a line through all of them is the better guess.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from pylucebox._stats import MAX_DRAFT
from pylucebox.width.policy import MAX_WIDTH, WidthCosts

__all__ = ["CostModel", "Prices"]

_SHAPE: Final = tuple(1.0 + 0.25 * row for row in range(MAX_WIDTH))  # of a machine nothing is known of, in plain steps
_DRAFT_SHARE: Final = 0.07  # of a plain step, a draft on such a machine
_MOST_SAMPLES: Final = 32.0  # that a mean remembers
_SWEEP_SAMPLES: Final = 12.0  # that a figure from elsewhere counts as
_SPREAD: Final = 1.25  # a sample counts as at most so much more or less than the mean
_SHRINK: Final = 3.0  # samples that the line weighs against a mean
_SHAPE_WEIGHT: Final = 0.25
_AGEING: Final = 0.993  # of a mean's weight, per cycle of another row count
_COMMON: Final = 1 / 24  # share of a deviation that is put down to the clock of the machine or to the context
_NEWS: Final = 12  # samples after which prices are computed anew
_FORGOTTEN: Final = 0.5  # samples, aged, below which a row count is forgotten
_FIRST_SPREAD: Final = 3.0  # by how much the sample that comes then may differ from the price
_MOST_SURPRISES: Final = 4  # samples in a row that are off to the same side, after which the mean is given up
_PLAIN_SAMPLES: Final = 5  # plain steps whose median counts, so that neither a hiccup nor a bad sweep does
_FASTER: Final = 0.9  # of the known time, below which a plain step tells that it was wrong
_FAR_FASTER: Final = 0.5  # of the known time, below which a chain does: what was known is of one that was held up
_SWEEP_PLAIN: Final = 2  # of them that a figure from elsewhere counts as
_HOPE: Final = 0.35  # of the way from the rows below it to its price, such rows are priced
_MOST_BUILDS: Final = 2  # after so many builds of a row count in a row, building is what it costs
_MOST_ANCHORS: Final = 3  # cycles to time one of the first widths on a machine nothing is known of
_HEARSAY: Final = 1.0  # samples that the price of a draft counts as which was measured under other circumstances
_CHANCE: Final = 0.15  # of a draft's time, by which it may seem to cost more than another


class Prices(NamedTuple):
    """What the parts of a cycle cost, in microseconds.

    Attributes
    ----------
    verify
        A verify step of 1 to 8 rows; entry k is that of k drafts in one sequence.
    hopeful
        The same, but rows that were not timed for long are priced with some hope, so that they are timed again.
    draft
        A chain of 0 to 7 drafts.
    reject
        A rejection.
    """

    verify: list[float]
    hopeful: list[float]
    draft: list[float]
    reject: float


class CostModel:
    """Times of verify steps, drafts and rejections, in microseconds.

    Parameters
    ----------
    costs
        Where to start from; None if nothing is known.
    n_active
        Sequences of a cycle, and with that rows of a plain one.
    """

    def __init__(self, costs: WidthCosts | None = None, n_active: int = 1) -> None:
        self.source = "none" if costs is None else costs.source
        self.prefill_us_per_token = 0.0 if costs is None else costs.mtp_prefill_us_per_token
        known = costs is not None
        self._shape = _SHAPE if costs is None else costs.verify_us
        self._mean = [figure if known else 0.0 for figure in self._shape]
        self._count = [_SWEEP_SAMPLES if known else 0.0] * MAX_WIDTH
        self._plain_row = min(n_active, MAX_WIDTH) - 1
        self._plain: list[float] = []  # the last plain steps
        self._start_plain()
        self._n_skipped = [0] * MAX_WIDTH
        self._surprises = [0] * MAX_WIDTH  # in a row; negative if the samples were too low
        self._factor = 1.0
        self._draft_shape = tuple(_DRAFT_SHARE * (n + 1) for n in range(MAX_DRAFT)) if costs is None else costs.draft_us
        self._draft_scale = 1.0 if known else 0.0  # 0: not measured
        self._draft_count = _SWEEP_SAMPLES if known else 0.0
        self._look_us = 0.0  # what another launch was measured to take
        self._look_count = 0.0
        self._reject_us = 0.0 if costs is None else costs.reject_us
        self._clean_us = 0.0
        self._reject_count = _SWEEP_SAMPLES if known else 0.0
        self._clean_count = 0.0
        self._prices: Prices | None = None
        self._n_news = 0

    def _start_plain(self) -> None:
        row = self._plain_row
        self._plain = [self._mean[row]] * _SWEEP_PLAIN if self._count[row] else []

    # ---- prices

    @property
    def prices(self) -> Prices:
        """All prices; the lists are shared, do not change them."""
        if self._prices is None:
            verify = self._verify()
            scale = self._draft_scale * self._factor if self._draft_count else verify[0]
            draft = [0.0, *(scale * figure for figure in self._draft_shape)]
            reject = max(0.0, self._reject_us - self._clean_us) * self._factor
            self._prices = Prices(verify, self._hopeful(verify), draft, reject)
        return self._prices

    def timed(self, n_rows: int) -> bool:
        """Tell whether a step of so many rows was ever measured."""
        return n_rows > MAX_WIDTH or self._count[n_rows - 1] > 0.0

    def first_untimed(self, limit: int, trials: list[int]) -> int | None:
        """Return the drafts of one of the first cycles to time on a machine that nothing is known of, None if it is.

        Parameters
        ----------
        limit
            The most.
        trials
            Cycles of each number of drafts that were begun for that; counts this one.
        """
        if self.source != "none":
            return None
        for k in (min(2, limit), 0, limit):
            if not self.timed(k + 1) and trials[k] < _MOST_ANCHORS:
                trials[k] += 1
                return k
        return None

    @property
    def launch_us(self) -> float:
        """What drafting in one more launch takes, beyond its drafts.

        On a GPU a launch has a price of its own: inputs that go up, a wait, results that come back. It is taken to be
        what the first draft costs more than each of the others, unless so little that it may be an error of
        measurement, until chains of several launches tell.
        """
        first, longest = self._draft_shape[0], self._draft_shape[-1]
        more_us = first - (longest - first) / (MAX_DRAFT - 1) - _CHANCE * first
        guess_us = max(0.0, more_us) * (self._draft_scale or 1.0)
        if guess_us:
            guess_us = max(0.0, guess_us + self._look_count * self._look_us) / (1.0 + self._look_count)
        return guess_us * self._factor

    @property
    def known(self) -> bool:
        """Whether anything was ever measured."""
        return any(self._count)

    def _verify(self) -> list[float]:
        mean, count = self._mean, self._count
        total = sum(count)
        if not total:
            return list(self._shape)
        scale = sum(n * m for n, m in zip(count, mean, strict=True))
        scale /= sum(n * s for n, s in zip(count, self._shape, strict=True))
        base, slope = self._line(scale)
        prices = []
        for row in range(MAX_WIDTH):
            line = base + slope * row
            price = (count[row] * mean[row] + _SHRINK * line) / (count[row] + _SHRINK)
            prices.append(self._factor * price)
        # All is compared with a plain step: what it was measured to take counts, and no guess from other rows.
        plain = self._plain_row
        if count[plain]:
            prices[plain] = min([mean[plain], *prices[plain + 1 : plain + 2]])
        # What is not known costs no more than a step of more rows.
        for row in range(MAX_WIDTH - 2, 0, -1):
            if count[row] < _FORGOTTEN:
                prices[row] = min(prices[row], prices[row + 1])
        return prices

    def _hopeful(self, verify: list[float]) -> list[float]:
        """Price forgotten rows with some hope: no row can cost more than a plain step of its own."""
        hopeful = list(verify)
        known = 0
        for row in range(1, MAX_WIDTH):
            if self._count[row] >= _FORGOTTEN:
                known = row
            elif self._count[row]:
                guess = min(verify[row] - verify[known], (row - known) * verify[0])
                hopeful[row] = verify[known] + _HOPE * max(0.0, guess)
        return hopeful

    def _line(self, scale: float) -> tuple[float, float]:
        """Fit base and slope to all means, and with little weight to the shape."""
        weight = at = at2 = cost = cost_at = 0.0
        for row, (mean, count, shape) in enumerate(zip(self._mean, self._count, self._shape, strict=True)):
            w = min(count, 16.0)
            # More than a plain step for each row is a mistake, which other rows should not pay for.
            likely = min(mean, (row + 1) * self._mean[0]) if self._count[0] else mean
            for share, value in ((w, likely), (_SHAPE_WEIGHT, scale * shape)):
                weight += share
                at += share * row
                at2 += share * row * row
                cost += share * value
                cost_at += share * value * row
        spread = weight * at2 - at * at
        slope = max(0.0, (weight * cost_at - at * cost) / spread)
        base = (cost - slope * at) / weight
        return max(base, 0.05 * cost / weight), slope

    # ---- samples

    def learn_verify(self, n_rows: int, took_us: float, *, built: bool) -> None:
        """Take the time of a step; one in which a graph was built tells nothing, unless they all build."""
        row = n_rows - 1
        if not 0 <= row < MAX_WIDTH:
            return
        if built and self._n_skipped[row] < _MOST_BUILDS:
            self._n_skipped[row] += 1
            return
        if not built:
            self._n_skipped[row] = 0
        if not self.known:
            self._mean[row], self._count[row] = took_us, 1.0
            self._prices = None
            return
        if row == self._plain_row and self._count[row]:
            # Nothing makes a step faster than it is: much less than was known is believed at once, more is not.
            known = [took_us] if took_us < _FASTER * self._mean[row] else self._plain[1 - _PLAIN_SAMPLES :]
            self._plain = [*known, took_us]
            self._mean[row] = sorted(self._plain)[(len(self._plain) - 1) // 2]
            self._outdate()
            return
        mean, spread = self._mean[row], _SPREAD
        if self._count[row] < _FORGOTTEN:
            mean, spread = self.prices.verify[row] / self._factor, _FIRST_SPREAD
        deviation = took_us / (self._factor * mean)
        surprises = 0 if 1.0 / spread <= deviation <= spread else 1 if deviation > 1.0 else -1
        self._surprises[row] = self._surprises[row] + surprises if surprises * self._surprises[row] >= 0 else surprises
        if not surprises:
            self._surprises[row] = 0
            self._factor = min(2.0, max(0.5, self._factor * (1.0 + (deviation - 1.0) * _COMMON)))
        elif abs(self._surprises[row]) >= _MOST_SURPRISES:  # no hiccups: what was known is wrong
            self._surprises[row] = 0
            self._count[row] = 0.0
            spread = _FIRST_SPREAD
        ratio = min(spread, max(1.0 / spread, deviation))
        count = min(self._count[row] + 1.0, _MOST_SAMPLES) if self._count[row] >= _FORGOTTEN else 1.0
        plain = self._count[self._plain_row]  # is measured anew now and then, and never forgotten
        for other in range(1, MAX_WIDTH):
            self._count[other] *= _AGEING
        self._count[self._plain_row] = plain
        self._count[row] = count
        self._mean[row] = mean * (1.0 + (ratio - 1.0) / count)
        self._outdate()

    def learn_draft(self, n_drafts: int, took_us: float, n_launches: int = 1) -> None:
        """Take the time of a chain of drafts that was made in so many launches."""
        self._outdate()
        if n_launches > 1 and self._draft_count:
            whole_us = self._draft_scale * self._draft_shape[n_drafts - 1] * self._factor
            self._learn_look(took_us, whole_us, n_launches - 1)
        took_us = max(took_us - (n_launches - 1) * self.launch_us, took_us / n_launches)
        sample = took_us / (self._draft_shape[n_drafts - 1] * self._factor)
        if sample < _FAR_FASTER * self._draft_scale:
            self._draft_count = 0.0
        if self._draft_count:
            spread = _SPREAD if self._draft_count > _HEARSAY else _FIRST_SPREAD
            sample = min(spread, max(1 / spread, sample / self._draft_scale)) * self._draft_scale
        count = self._draft_count = min(self._draft_count + 1.0, _MOST_SAMPLES)
        self._draft_scale += (sample - self._draft_scale) / count

    def _learn_look(self, took_us: float, whole_us: float, n_looks: int) -> None:
        """Take the time of a chain that takes `whole_us` in one launch; a look counts as no more than that."""
        sample = min((took_us - whole_us) / n_looks, whole_us) / self._factor
        count = self._look_count = min(self._look_count + 1.0, _MOST_SAMPLES)
        self._look_us += (sample - self._look_us) / count

    def learn_rest(self, rejected: bool, took_us: float) -> None:
        """Take the time after a step, with or without a rejection."""
        plain_us = self.prices.verify[0]
        self._outdate()
        sample = took_us / self._factor
        if rejected:
            count = self._reject_count = min(self._reject_count + 1.0, _MOST_SAMPLES)
            if count > 2.0:
                sample = min(sample, 3.0 * self._reject_us + plain_us / 8)
            self._reject_us += (sample - self._reject_us) / count
        else:
            count = self._clean_count = min(self._clean_count + 1.0, _MOST_SAMPLES)
            sample = min(sample, plain_us)
            self._clean_us += (sample - self._clean_us) / count

    def _outdate(self) -> None:
        """Have prices computed anew after some samples; none of them moves a price by much."""
        self._n_news += 1
        if self._n_news >= _NEWS:
            self._n_news = 0
            self._prices = None

    # ---- keeping

    def relative(self, n_active: int = 1) -> CostModel:
        """Return a model for other circumstances, that starts from the prices of this one and soon knows better."""
        other = CostModel(n_active=n_active)
        other.source = self.source
        other.prefill_us_per_token = self.prefill_us_per_token
        other._shape, other._draft_shape = self._shape, self._draft_shape
        if self.known:
            other._shape = tuple(self.prices.verify)
            other._mean = list(other._shape)
            other._count = [_SWEEP_SAMPLES if n else 0.0 for n in self._count]
        if self._draft_count:
            other._draft_scale = self._draft_scale * self._factor
            other._draft_count = _HEARSAY  # chains of several sequences may cost as one does, or each its own
        other._look_us = self._look_us * self._factor
        other._look_count = min(self._look_count, _SWEEP_SAMPLES)
        other._start_plain()
        other._reject_us = self.prices.reject
        other._reject_count = min(self._reject_count, _SWEEP_SAMPLES)
        return other

    def snapshot(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {
            "source": self.source,
            "prefill_us_per_token": self.prefill_us_per_token,
            "shape": list(self._shape),
            "mean": list(self._mean),
            "count": list(self._count),
            "factor": self._factor,
            "draft_shape": list(self._draft_shape),
            "draft": [self._draft_scale, self._draft_count],
            "look": [self._look_us, self._look_count],
            "rest": [self._reject_us, self._reject_count, self._clean_us, self._clean_count],
        }

    @classmethod
    def restored(cls, stored: dict[str, Any], n_active: int) -> CostModel:
        """Return the model that `snapshot` described."""
        model = cls(n_active=n_active)
        model.source = str(stored["source"])
        model.prefill_us_per_token = float(stored["prefill_us_per_token"])
        model._shape = tuple(map(float, stored["shape"]))
        model._mean = [float(figure) for figure in stored["mean"]]
        model._count = [float(figure) for figure in stored["count"]]
        model._start_plain()
        model._factor = float(stored["factor"])
        model._draft_shape = tuple(map(float, stored["draft_shape"]))
        model._draft_scale, model._draft_count = map(float, stored["draft"])
        model._look_us, model._look_count = map(float, stored.get("look", (0.0, 0.0)))
        model._reject_us, model._reject_count, model._clean_us, model._clean_count = map(float, stored["rest"])
        return model
