"""Facts about the machine in `lucebox doctor`, read from a made-up file system."""

from __future__ import annotations

from pathlib import Path

import pytest

from pylucebox.cli import _system


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_cpu_facts_keep_only_features_that_matter(tmp_path: Path) -> None:
    put(
        tmp_path,
        "proc/cpuinfo",
        "processor\t: 0\nmodel name\t: Test CPU 9000\nflags\t\t: fpu avx2 hypervisor avx512f\n",
    )
    facts = _system.cpu_facts(tmp_path)
    assert facts["model"] == "Test CPU 9000"
    assert facts["features"] == ["avx2", "avx512f"]


def test_cpu_facts_know_the_limit_of_the_container(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/cgroup", "0::/box\n")
    put(tmp_path, "sys/fs/cgroup/box/cpu.max", "150000 100000\n")
    assert _system.cpu_facts(tmp_path)["cgroup_cpus"] == 1.5


def test_facts_of_an_empty_file_system_are_unknown_and_raise_nothing(tmp_path: Path) -> None:
    assert _system.memory_facts(tmp_path) == {"total_bytes": None, "available_bytes": None}
    assert _system.cpu_facts(tmp_path)["features"] == []
    assert _system.gpu_facts(tmp_path) == {
        "amd_targets": [],
        "kfd": None,
        "rocm_version": None,
        "amdgpu": None,
        "nvidia_driver": None,
        "vulkan_drivers": [],
    }
    assert _system.loaded_libraries(tmp_path) == []


def test_memory_is_given_in_bytes(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", "MemTotal:       1024 kB\nMemFree: 5 kB\nMemAvailable:    512 kB\n")
    assert _system.memory_facts(tmp_path) == {"total_bytes": 1048576, "available_bytes": 524288}


@pytest.mark.parametrize(("number", "name"), [(110501, "gfx1151"), (90010, "gfx90a"), (100300, "gfx1030")])
def test_kernel_target_numbers_become_gfx_names(number: int, name: str) -> None:
    assert _system.gfx_name(number) == name


def test_gpu_facts_list_targets_and_skip_processor_nodes(tmp_path: Path) -> None:
    put(tmp_path, "sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 16\ngfx_target_version 0\n")
    put(tmp_path, "sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 80\ngfx_target_version 110501\n")
    put(tmp_path, "opt/rocm/.info/version", "7.1.0-12\n")
    put(tmp_path, "usr/share/vulkan/icd.d/radeon_icd.x86_64.json", "{}")
    put(tmp_path, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu\n")
    facts = _system.gpu_facts(tmp_path)
    assert facts["amd_targets"] == ["gfx1151"]
    assert facts["rocm_version"] == "7.1.0-12"
    assert facts["vulkan_drivers"] == ["radeon_icd.x86_64"]
    assert facts["nvidia_driver"] == "570.86.15"


def test_environment_is_limited_to_what_steers_the_back_ends() -> None:
    environ = {
        "HSA_OVERRIDE_GFX_VERSION": "11.5.1",
        "GGML_CUDA_GRAPHS": "0",
        "LUCEBOX_LLAMA_CPP_DIR": "x",
        "API_TOKEN": "secret",
        "HOME": "/home/someone",
        "OMP_NUM_THREADS": "2",
    }
    assert _system.env_facts(environ) == {
        "GGML_CUDA_GRAPHS": "0",
        "HSA_OVERRIDE_GFX_VERSION": "11.5.1",
        "LUCEBOX_LLAMA_CPP_DIR": "x",
        "OMP_NUM_THREADS": "2",
    }


def test_libraries_are_read_from_the_memory_map(tmp_path: Path) -> None:
    lines = [
        "7f00-7f01 r-xp 00000000 fe:00 1    /a b/pylucebox/lib/libggml-cpu-haswell.so",
        "7f01-7f02 rw-p 00000000 fe:00 1    /a b/pylucebox/lib/libggml-cpu-haswell.so",
        "7f02-7f03 r-xp 00000000 fe:00 2    /usr/lib/libc.so.6",
        "7f03-7f04 rw-p 00000000 00:00 0",
    ]
    put(tmp_path, "proc/self/maps", "\n".join(lines))
    assert _system.loaded_libraries(tmp_path) == ["/a b/pylucebox/lib/libggml-cpu-haswell.so"]


@pytest.mark.parametrize(
    ("libraries", "variant"),
    [
        (["/x/libggml-base.so", "/x/libggml-cpu.so"], "native"),
        (["/x/libggml-cpu.so.0.26.0"], "native"),
        (["/x/libggml-cpu-sapphirerapids.so"], "sapphirerapids"),
        (["/x/libggml-base.so"], None),
    ],
)
def test_cpu_variant_is_read_from_the_library_in_use(libraries: list[str], variant: str | None) -> None:
    assert _system.cpu_variant(libraries) == variant


def no_gpu() -> _system.Facts:
    return {"amd_targets": [], "kfd": None, "nvidia_driver": None}


def codes(gpu: _system.Facts, kernel: str = "6.19.0", backends: tuple[str, ...] = ("CPU",)) -> list[str]:
    return [hint.code for hint in _system.hints({"cgroup_cpus": None}, gpu, kernel, list(backends))]


def test_an_ordinary_machine_gets_no_hints() -> None:
    assert codes(no_gpu()) == []


@pytest.mark.parametrize(
    ("kernel", "too_old"), [("6.18.3-arch1", True), ("6.18.4", False), ("6.9.12", True), ("7.0.0", False)]
)
def test_gfx1151_on_an_old_kernel_is_pointed_out(kernel: str, *, too_old: bool) -> None:
    gpu = {**no_gpu(), "amd_targets": ["gfx1151"], "kfd": "accessible"}
    assert ("kernel_too_old" in codes(gpu, kernel, ("CPU", "ROCm"))) is too_old


def test_a_gpu_that_this_build_cannot_use_is_pointed_out() -> None:
    assert codes({**no_gpu(), "amd_targets": ["gfx1100"]}) == ["gpu_unused"]
    assert codes({**no_gpu(), "amd_targets": ["gfx1100"]}, backends=("CPU", "Vulkan")) == []
    assert codes({**no_gpu(), "nvidia_driver": "570"}) == ["gpu_unused"]


def test_missing_permission_on_the_gpu_is_pointed_out() -> None:
    assert codes({**no_gpu(), "kfd": "no permission"}) == ["kfd_permission"]


def test_a_fraction_of_a_cpu_is_pointed_out() -> None:
    hints = _system.hints({"cgroup_cpus": 0.5}, no_gpu(), "6.19.0", ["CPU"])
    assert [hint.code for hint in hints] == ["cpu_quota"]
