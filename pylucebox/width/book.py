"""The cost models of a machine, kept apart where costs differ for reasons that no row count shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pylucebox.width.costs import CostModel
from pylucebox.width.policy import WidthCosts

__all__ = ["CostBook"]

_BUCKETS: Final = (2048, 8192, 32768, 131072)  # context lengths between which costs are kept apart


class CostBook:
    """A cost model for each number of sequences and each range of context lengths.

    Parameters
    ----------
    costs
        Where to start from; None if nothing is known.
    """

    def __init__(self, costs: WidthCosts | None = None) -> None:
        n_past = 0 if costs is None else costs.n_past
        self._models = {(1, _bucket(n_past)): CostModel(costs)}

    def at(self, n_active: int, n_past: int) -> CostModel:
        """Return the model for so many sequences and tokens in the context; a new one starts from the nearest."""
        key = (n_active, _bucket(n_past))
        model = self._models.get(key)
        if model is None:
            nearest = min(self._models, key=lambda other: (abs(other[0] - key[0]), abs(other[1] - key[1])))
            model = self._models[key] = self._models[nearest].relative(n_active)
        return model

    def add(self, n_active: int, costs: WidthCosts) -> None:
        """Take measured costs of cycles of so many sequences."""
        self._models[n_active, _bucket(costs.n_past)] = CostModel(costs, n_active)

    def snapshot(self) -> list[Any]:
        """Return the state for JSON."""
        return [[*key, model.snapshot()] for key, model in self._models.items()]

    @classmethod
    def restored(cls, stored: Sequence[Any]) -> CostBook:
        """Return the book that `snapshot` described."""
        book = cls()
        models = {
            (int(n_active), int(bucket)): CostModel.restored(model, int(n_active)) for n_active, bucket, model in stored
        }
        if not models:
            raise ValueError("no costs")
        book._models = models
        return book


def _bucket(n_past: int) -> int:
    return sum(n_past >= edge for edge in _BUCKETS)
