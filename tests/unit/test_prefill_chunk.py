"""The chunk of a prompt follows from free memory, and from what sessions turn out to need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from pylucebox._backends import Device
from pylucebox._errors import OutOfMemoryError
from pylucebox._prefill_chunk import free_device_bytes, open_with_chunk
from pylucebox._session_options import SessionInfo

ROW = 1000


@dataclass
class Fake:
    """A session that takes `ROW` bytes a token, and `mtp` more for the MTP block."""

    info: SessionInfo
    is_open: bool = True

    @property
    def close(self) -> Callable[[], object]:
        def end() -> None:
            self.is_open = False

        return end


@dataclass
class Opener:
    n_ctx: int = 8192
    mtp: int = 0
    room: int = 1 << 40
    opened: list[Fake] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def __call__(self, chunk: int) -> Fake:
        assert not any(session.is_open for session in self.opened), "two at once"
        self.asked.append(chunk)
        if chunk * (ROW + self.mtp) > self.room:
            raise OutOfMemoryError("no memory")
        info = SessionInfo(
            n_ctx=self.n_ctx,
            n_seq=1,
            n_ubatch=chunk,
            max_width=8,
            n_rs_seq=7,
            context_bytes=0,
            compute_bytes=chunk * ROW,
            mtp_context_bytes=0,
            mtp_compute_bytes=chunk * self.mtp,
            mtp_kv_in_trunk=True,
            kept_graphs_bytes=0,
            draft_chain=True,
            attend_selected=True,
        )
        self.opened.append(Fake(info))
        return self.opened[-1]


def test_without_a_gpu_it_is_the_default() -> None:
    opener = Opener()
    assert open_with_chunk(opener, lambda: None).info.n_ubatch == 512
    assert opener.asked == [512]


@pytest.mark.parametrize(
    ("free", "mtp", "chunk"),
    [
        # half of what is free must hold what is added: 512 rows more, or 1,536
        (1023 * ROW, 0, 512),
        (1024 * ROW, 0, 1024),
        (3071 * ROW, 0, 1024),
        (3072 * ROW, 0, 2048),
        (1 << 40, 0, 2048),
        (3072 * ROW, ROW, 1024),
        (1024 * ROW, 1, 512),
    ],
)
def test_free_memory_of_a_gpu_makes_it_larger_and_the_mtp_block_counts(free: int, mtp: int, chunk: int) -> None:
    opener = Opener(mtp=mtp)
    session = open_with_chunk(opener, lambda: free)
    assert session.is_open
    assert session.info.n_ubatch == chunk
    assert opener.asked == [512, *([chunk] if chunk > 512 else [])]


def test_it_is_no_longer_than_the_context() -> None:
    assert open_with_chunk(Opener(n_ctx=1500), lambda: 1 << 40).info.n_ubatch == 1024
    assert open_with_chunk(Opener(n_ctx=256), lambda: 1 << 40).info.n_ubatch == 512


def test_too_little_memory_makes_it_smaller() -> None:
    opener = Opener(room=200 * ROW)
    assert open_with_chunk(opener, lambda: 1 << 40).info.n_ubatch == 128
    assert opener.asked == [512, 256, 128]


def test_a_larger_one_that_does_not_fit_after_all_goes_back() -> None:
    opener = Opener(room=1100 * ROW)
    assert open_with_chunk(opener, lambda: 1 << 40).info.n_ubatch == 1024
    assert opener.asked == [512, 2048, 1024]


def test_without_memory_for_the_smallest_it_fails() -> None:
    opener = Opener(room=63 * ROW)
    with pytest.raises(OutOfMemoryError):
        open_with_chunk(opener, lambda: None)
    assert opener.asked == [512, 256, 128, 64]


def device(name: str, kind: str, free: int) -> Device:
    return Device(
        name=name, description="", kind=kind, backend="", memory_free_bytes=free, memory_total_bytes=1 << 40
    )


DEVICES = [device("CPU", "cpu", 7), device("GPU0", "gpu", 5), device("GPU1", "gpu", 3)]


@pytest.mark.parametrize(
    ("devices", "name", "n_gpu_layers", "free"),
    [
        (DEVICES, "auto", -1, 3),
        (DEVICES, "GPU0", -1, 5),
        (DEVICES, "auto", 0, None),
        (DEVICES, "cpu", -1, None),
        (DEVICES[:1], "auto", -1, None),
        ([device("GPU0", "gpu", 0)], "auto", -1, None),
    ],
)
def test_what_counts_as_free(devices: list[Device], name: str, n_gpu_layers: int, free: int | None) -> None:
    assert free_device_bytes(devices, name, n_gpu_layers) == free
