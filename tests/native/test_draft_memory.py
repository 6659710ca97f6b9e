"""The end of a draft as one kernel of a GPU: which memory it writes where tensors lie over each other."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from _programs import compiler_for

import pylucebox

HERE = Path(__file__).parent
GGML = HERE.parents[1] / "vendor" / "llama.cpp" / "ggml"
SOURCES = GGML / "src" / "ggml-cuda"
LIBRARIES = Path(pylucebox.__file__).parent / "lib"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the host's side of the kernel as C++, beside a stand-in for CUDA's part."""
    compiler = compiler_for(SOURCES / "lucebox-draft.cu", LIBRARIES / "libggml-base.so")
    folder = tmp_path_factory.mktemp("draft-memory")
    for name in ("lucebox-draft.cuh", "lucebox-nodes.cuh"):
        shutil.copy(SOURCES / name, folder)
    shutil.copy(SOURCES / "lucebox-draft.cu", folder / "lucebox-draft.cpp")
    shutil.copy(HERE / "cuda_stand_in.cuh", folder / "common.cuh")
    built = folder / "draft_memory"
    includes = [f"-I{path}" for path in (folder, GGML / "include", GGML / "src")]
    sources = [str(HERE / "draft_memory.cpp"), str(folder / "lucebox-draft.cpp")]
    libraries = [f"-L{LIBRARIES}", f"-Wl,-rpath,{LIBRARIES}", "-lggml-base"]
    subprocess.run([compiler, "-std=c++17", *includes, *sources, "-o", str(built), *libraries], check=True)
    return built


@pytest.mark.parametrize("n_seq", [1, 3])
@pytest.mark.parametrize(
    ("over", "under", "launched"),
    [
        # each where it lies by itself
        ("drafts", "drafts", "one kernel: column written, token written"),
        # without a reader behind these nodes the allocator gives the memory away: written last, it was the first draft
        ("drafts", "token", "one kernel: column written, token left"),
        ("drafts", "column", "one kernel: column left, token written"),
        # what the kernel reads while it writes
        ("drafts", "before", "single nodes"),
        ("token", "before", "single nodes"),
        ("column", "before", "single nodes"),
        ("column", "logits", "single nodes"),
        ("drafts", "ids", "single nodes"),
        ("token", "column", "single nodes"),
    ],
)
def test_nothing_is_written_over_what_is_still_needed(
    program: Path, n_seq: int, over: str, under: str, launched: str
) -> None:
    done = subprocess.run([str(program), str(n_seq), over, under], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == launched


@pytest.mark.parametrize(("n_seq", "launched"), [(1, "one kernel: column written, token written"), (3, "single nodes")])
def test_a_sequence_overwrites_its_own_logits_only(program: Path, n_seq: int, launched: str) -> None:
    done = subprocess.run([str(program), str(n_seq), "drafts", "logits"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == launched
