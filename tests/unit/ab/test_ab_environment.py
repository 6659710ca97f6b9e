"""What a session says about where it was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pylucebox._errors import LoadError
from pylucebox.ab.environment import (
    HostMachine,
    differences,
    environment,
    file_facts,
    redact,
    redact_command,
    require_same,
)
from pylucebox.ab.errors import EnvironmentMismatchError
from pylucebox.ab.planner import Wishes
from pylucebox.ab.simulate import Behaviour, stub_plan

NATIVE = {
    "upstream_build": "b1",
    "series_hash": "abc",
    "compiler": "cc",
    "build_type": "Release",
    "cmake_args": "",
    "backends": ({"name": "CPU", "features": {"AVX2": "1"}},),
    "devices": ({"name": "CPU", "description": "a CPU", "backend": "CPU", "memory_free_bytes": 1},),
}


def made(**changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "suite": stub_plan({"a": Behaviour(), "b": Behaviour()}, Wishes()).suite,
        "native": NATIVE,
        "files": [{"name": "m.gguf", "size_bytes": 3, "sha256": "00"}],
        "arms": {},
        "command": ["lucebox", "ab"],
        "environ": {"GGML_X": "1", "SECRET": "s"},
        "machine": {"load1": 0.5},
    }
    return environment(**{**arguments, **changes})


def test_same_machine_gives_the_same_hash_and_load_does_not_count() -> None:
    first, second = made(), made(machine={"load1": 9.0}, command=["other"])
    assert first["sha256"] == second["sha256"]
    require_same(first, second)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"environ": {"GGML_X": "2"}}, "comparable.variables.GGML_X"),
        ({"files": [{"name": "m.gguf", "size_bytes": 3, "sha256": "11"}]}, "comparable.files"),
        ({"native": {**NATIVE, "series_hash": "def"}}, "build.series_hash"),
        ({"arms": {"old": {"version": "1"}}}, "build.arms.old"),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(EnvironmentMismatchError, match=field.replace(".", r"\.")) as caught:
        require_same(made(), made(**changes))
    assert [difference[0] for difference in caught.value.differences] == [field]
    assert made()["sha256"] != made(**changes)["sha256"]


def test_only_variables_that_matter_are_told() -> None:
    assert made()["comparable"]["variables"] == {"GGML_X": "1"}


def test_differences_are_dotted_and_cover_missing_keys() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "d": 3}}) == [("a.c", 2, None), ("a.d", None, 3)]


def test_home_users_and_keys_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert redact("-m /home/somebody/m.gguf http://me:pw@host/x") == "-m ~/m.gguf http://host/x"
    command = ["s", "--api-key", "abc", "--token=abc", "--port", "1", "/home/somebody/x"]
    assert redact_command(command) == ["s", "--api-key", "***", "--token=***", "--port", "1", "~/x"]


def test_file_facts(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"abc")
    facts = file_facts(path)
    assert (facts["name"], facts["size_bytes"]) == ("m.gguf", 3)
    assert facts["sha256"].startswith("ba7816bf")
    with pytest.raises(LoadError, match="cannot read"):
        file_facts(tmp_path / "none")


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


def test_state_of_a_machine_that_tells_everything(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        {
            "proc/loadavg": "0.25 0.1 0.1 1/100 1\n",
            "proc/meminfo": "MemAvailable: 2048 kB\nSwapTotal: 10 kB\nSwapFree: 4 kB\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq": "3000000\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2000000\n",
            "sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq": "1000000\n",
            "sys/class/powercap/intel-rapl:0/energy_uj": "5000000\n",
            "sys/class/hwmon/hwmon0/name": "nvme\n",
            "sys/class/hwmon/hwmon0/temp1_input": "99000\n",
            "sys/class/hwmon/hwmon1/name": "k10temp\n",
            "sys/class/hwmon/hwmon1/temp1_input": "45500\n",
            "sys/class/drm/card0/device/hwmon/hwmon2/temp1_input": "60000\n",
        },
    )
    state = HostMachine(root).state()
    assert (state["temperature_c"], state["cpu_mhz"], state["cpu_limit_mhz"]) == (45.5, 1500, 3000)
    assert (state["energy_j"], state["load1"]) == (5.0, 0.25)
    assert (state["available_bytes"], state["swap_used_bytes"]) == (2048 * 1024, 6 * 1024)
    assert state["gpu"] == [{"clock_mhz": None, "power_cap_w": None, "temperature_c": 60.0}]


def test_state_of_a_machine_that_tells_nothing(tmp_path: Path) -> None:
    state = HostMachine(tmp_path).state()
    assert state["temperature_c"] is state["energy_j"] is state["load1"] is None
    assert "gpu" not in state
