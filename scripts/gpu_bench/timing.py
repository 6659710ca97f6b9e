"""Medians and ratios with intervals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from pylucebox.cli._measure import median_interval

__all__ = ["figure", "ratio"]


def figure(values: Sequence[float]) -> dict[str, Any]:
    """Return the median of some values with its interval, and the values."""
    low, high, coverage = median_interval(values)
    return {
        "median": statistics.median(values),
        "low": low,
        "high": high,
        "coverage": coverage,
        "values": [round(float(value), 3) for value in values],
    }


def ratio(upper: Sequence[float], lower: Sequence[float]) -> dict[str, Any]:
    """Return the median of ``upper / lower``, pair by pair."""
    return figure([float(value) for value in np.asarray(upper) / np.asarray(lower)])
