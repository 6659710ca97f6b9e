"""Simulation of width policies on recorded traces: `lucebox trace` makes traces, `lucebox sim` replays them."""
