"""What widths cost on this machine: measured, and kept in the user's cache folder."""

from pylucebox.calibration.find import CostsWanted, check_costs, cost_key, find_costs
from pylucebox.calibration.store import CostKey, CostStore, default_store
from pylucebox.calibration.sweep import MIN_N_PAST, SweepOptions, going_on, measure_costs

__all__ = [
    "MIN_N_PAST",
    "CostKey",
    "CostStore",
    "CostsWanted",
    "SweepOptions",
    "check_costs",
    "cost_key",
    "default_store",
    "find_costs",
    "going_on",
    "measure_costs",
]
