"""Default number of threads, on made-up machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylucebox._threads import cgroup_quota, default_threads, physical_cores


def lay_out_cpus(folder: Path, siblings: dict[int, str]) -> Path:
    for cpu, text in siblings.items():
        topology = folder / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(text + "\n")
    return folder


def test_hardware_threads_of_a_core_count_once(tmp_path: Path) -> None:
    cpus = lay_out_cpus(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert physical_cores(frozenset({0, 1, 2, 3}), cpus) == 2
    assert physical_cores(frozenset({0, 2}), cpus) == 1


def test_cpu_without_topology_counts_as_a_core(tmp_path: Path) -> None:
    assert physical_cores(frozenset({0, 1, 5}), tmp_path) == 3


@pytest.mark.parametrize(
    ("limits", "quota"),
    [
        ({"a/b": "max 100000", "a": "max 100000"}, None),
        ({"a/b": "150000 100000", "a": "max 100000"}, 1.5),
        ({"a/b": "400000 100000", "a": "200000 100000"}, 2.0),
        ({"a/b": "nonsense"}, None),
        ({}, None),
    ],
)
def test_smallest_limit_up_to_the_root_holds(tmp_path: Path, limits: dict[str, str], quota: float | None) -> None:
    for group, text in limits.items():
        (tmp_path / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / group / "cpu.max").write_text(text + "\n")
    own = tmp_path / "cgroup"
    own.write_text("1:name=systemd:/x\n0::/a/b\n")
    assert cgroup_quota(tmp_path, own) == quota


def test_machine_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert cgroup_quota(tmp_path, tmp_path / "missing") is None


def test_default_is_at_least_one_thread() -> None:
    assert default_threads() >= 1
