"""Traces: their rules, and files of them that are damaged in every way."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _traces import trace_of

from pylucebox import InvalidArgumentError, LoadError, TraceFormatError, WriteError
from pylucebox.sim.library import recorded
from pylucebox.sim.trace import DEPTH, Trace, match_lengths, quantised
from pylucebox.sim.trace_file import SUFFIX, read_trace, write_trace

LENGTHS = (2, 0, 7, 1, 3, 2, 1, 0)


def test_match_length_counts_the_drafts_before_the_first_that_differs() -> None:
    tokens = (1, 2, 3, 4)
    drafts = ((2, 3, 4, 9), (3, 9, 9, 9), (9, 4, 9, 9))
    assert match_lengths(tokens, drafts) == (3, 1, 0)


def test_drafts_behind_the_end_of_the_text_do_not_count() -> None:
    assert match_lengths((5, 5), ((5, 5, 5, 5, 5, 5, 5),)) == (1,)
    assert trace_of(LENGTHS).match == (2, 0, 6, 1, 3, 2, 1, 0)


def test_a_cut_trace_is_that_of_the_same_request_with_a_limit() -> None:
    trace = trace_of(LENGTHS)
    short = trace.cut(4)
    assert (short.tokens, short.max_tokens) == (trace.tokens[:4], 4)
    assert short.drafts == trace.drafts[:3]
    assert short.match == (2, 0, 1)
    assert trace.cut(9) is trace
    assert trace.cut(1).tokens == trace.tokens[:1]


def test_a_limit_beyond_the_end_of_a_text_that_ended_by_itself_is_kept() -> None:
    trace = trace_of(LENGTHS, limit=100)
    assert trace.cut(50).max_tokens == 50
    assert trace.cut(50).tokens == trace.tokens


def test_prompt_and_sampler_are_kept_in_files_and_become_hints(tmp_path: Path) -> None:
    plain = trace_of(LENGTHS)
    trace = replace(plain, prompt=tuple(range(plain.n_prompt)), seed=4_000_000_000, temperature=0.7)
    write_trace(tmp_path / f"a{SUFFIX}", trace)
    again = read_trace(tmp_path / f"a{SUFFIX}")
    assert (again.prompt, again.seed, again.temperature) == (trace.prompt, trace.seed, trace.temperature)
    hints = again.hints()
    assert tuple(hints.prompt) == (*trace.prompt, trace.tokens[0])
    assert hints.n_prompt == trace.n_prompt
    assert hints.draws is not None
    assert plain.hints().draws is None


def test_prompt_of_another_length_is_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        replace(trace_of(LENGTHS), prompt=(1,) * (trace_of(LENGTHS).n_prompt + 1))


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"tokens": ()}, "tokens"),
        ({"tokens": (1,)}, "drafts"),
        ({"drafts": ((1,) * 6,) * 2}, "drafts"),
        ({"probs": ((0.5,) * DEPTH,)}, "probs"),
        ({"probs": ((0.5,) * 6 + (1.5,),) * 2}, "probs"),
        ({"probs": ((0.5,) * 6 + (float("nan"),),) * 2}, "probs"),
        ({"max_tokens": 2}, "max_tokens"),
        ({"n_prompt": -1}, "n_prompt"),
        ({"sampler_rng": "dice"}, "sampler_rng"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(changes: dict[str, Any], argument: str) -> None:
    parts: dict[str, Any] = {
        "name": "x",
        "kind": "y",
        "tokens": (1, 2, 3),
        "drafts": ((1,) * DEPTH,) * 2,
        "probs": ((0.5,) * DEPTH,) * 2,
        "n_prompt": 0,
        "max_tokens": 3,
    }
    Trace(**parts)
    with pytest.raises(InvalidArgumentError) as caught:
        Trace(**{**parts, **changes})
    assert caught.value.argument == argument


def test_the_digest_tells_texts_and_drafts_apart_and_ignores_probabilities() -> None:
    trace = trace_of(LENGTHS)
    assert trace.digest == trace_of(LENGTHS, probs=[(0.25,) * DEPTH] * len(LENGTHS)).digest
    assert trace.digest != trace_of((3, *LENGTHS[1:])).digest
    assert trace.digest != trace.cut(5).digest


@pytest.mark.parametrize("p", [0.0, 1.0, 0.3, 1e-9, 0.999999])
def test_quantising_twice_changes_nothing_more(p: float) -> None:
    assert quantised(quantised(p)) == quantised(p) == pytest.approx(p, abs=1e-5)


@pytest.mark.parametrize("lengths", [LENGTHS, (0,), ()])
def test_a_file_gives_back_what_was_written(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    rows = [[quantised((at + depth) / 20) for depth in range(DEPTH)] for at in range(len(lengths))]
    trace = trace_of(lengths, probs=rows, name="Łukasz", limit=77)
    path = tmp_path / f"x{SUFFIX}"
    write_trace(path, trace)
    assert read_trace(path) == trace
    assert list(tmp_path.iterdir()) == [path]


def test_writing_again_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        write_trace(tmp_path / name, trace_of(LENGTHS))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="nowhere"):
        write_trace(tmp_path / "nowhere" / "x.npz", trace_of(LENGTHS))


def test_a_missing_file_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no such file"):
        read_trace(tmp_path / "x.npz")
    with pytest.raises(LoadError):
        read_trace(tmp_path)


def arrays_of(path: Path) -> dict[str, Any]:
    with np.load(path) as archive:
        return {name: archive[name] for name in archive.files}


def header_of(arrays: dict[str, Any]) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(arrays["header"].tobytes())
    return header


def packed(header: object) -> Any:
    return np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)


def _changed_header(**changes: object) -> Any:
    return lambda arrays: {**arrays, "header": packed({**header_of(arrays), **changes})}


def _without(key: str) -> Any:
    def change(arrays: dict[str, Any]) -> dict[str, Any]:
        header = header_of(arrays)
        del header[key]
        return {**arrays, "header": packed(header)}

    return change


DAMAGES = {
    "later version": _changed_header(schema="lucebox-trace/3"),
    "something else": _changed_header(schema="other/1"),
    "no schema": _without("schema"),
    "no name": _without("name"),
    "no facts": _without("facts"),
    "facts are a list": _changed_header(facts=[1]),
    "no digest": _without("digest"),
    "no generator": _without("sampler_rng"),
    "generator is a number": _changed_header(sampler_rng=5),
    "other digest": _changed_header(digest="0" * 64),
    "limit is a text": _changed_header(max_tokens="9"),
    "limit is a truth": _changed_header(max_tokens=True),
    "limit is too low": _changed_header(max_tokens=1),
    "header is a list": lambda arrays: {**arrays, "header": packed([])},
    "header is no JSON": lambda arrays: {**arrays, "header": np.frombuffer(b"{", dtype=np.uint8)},
    "header is no text": lambda arrays: {**arrays, "header": np.frombuffer(b"\xff\xfe", dtype=np.uint8)},
    "header is deep": lambda arrays: {**arrays, "header": np.frombuffer(b"[" * 60_000, dtype=np.uint8)},
    "tokens are gone": lambda arrays: {name: array for name, array in arrays.items() if name != "tokens"},
    "tokens are floats": lambda arrays: {**arrays, "tokens": arrays["tokens"].astype(float)},
    "tokens are a table": lambda arrays: {**arrays, "tokens": arrays["tokens"][None]},
    "tokens are too few": lambda arrays: {**arrays, "tokens": arrays["tokens"][:-1]},
    "drafts are narrow": lambda arrays: {**arrays, "drafts": arrays["drafts"][:, :6]},
    "drafts are others": lambda arrays: {**arrays, "drafts": arrays["drafts"] + 1},
    "probs are too many": lambda arrays: {**arrays, "probs": np.concatenate([arrays["probs"]] * 2)},
    "probs are signed": lambda arrays: {**arrays, "probs": arrays["probs"].astype("<i2")},
    "objects": lambda arrays: {**arrays, "tokens": np.array([{}, []], dtype=object)},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_with_its_path(tmp_path: Path, damage: str) -> None:
    path = tmp_path / f"x{SUFFIX}"
    write_trace(path, trace_of(LENGTHS))
    np.savez_compressed(path, **DAMAGES[damage](arrays_of(path)))
    with pytest.raises(TraceFormatError) as caught:
        read_trace(path)
    assert caught.value.path == str(path)
    assert caught.value.seen


def test_a_later_version_is_told_from_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    write_trace(path, trace_of(LENGTHS))
    np.savez_compressed(path, **DAMAGES["later version"](arrays_of(path)))
    with pytest.raises(TraceFormatError, match="lucebox-trace/3"):
        read_trace(path)


def test_the_first_version_is_read_and_says_nothing_of_random_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    write_trace(path, replace(trace_of(LENGTHS), sampler_rng="gumbel"))
    assert read_trace(path).sampler_rng == "gumbel"
    np.savez_compressed(path, **_changed_header(schema="lucebox-trace/1")(arrays_of(path)))
    assert read_trace(path).sampler_rng is None


def test_no_cut_or_flipped_byte_gets_through_or_crashes(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    write_trace(path, trace_of(LENGTHS))
    trace = read_trace(path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        for data in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :]):
            path.write_bytes(data)
            try:
                found = read_trace(path)
            except LoadError:  # TraceFormatError is one
                continue
            assert found == trace  # a byte that means nothing, such as a date


def test_an_array_that_would_fill_the_memory_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    write_trace(path, trace_of(LENGTHS))
    arrays = arrays_of(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array if name != "tokens" else np.zeros(2_000_000, dtype="<i4"))
            archive.writestr(f"{name}.npy", buffer.getvalue())
    with pytest.raises(TraceFormatError, match="more than a trace can have"):
        read_trace(path)


def test_a_header_that_promises_more_than_there_is_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    write_trace(path, trace_of(LENGTHS))
    arrays = arrays_of(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            data = buffer.getvalue()
            if name == "tokens":
                data = data.replace(b"(9,)", b"(999999999,)".ljust(4), 1)
            archive.writestr(f"{name}.npy", data)
    with pytest.raises(TraceFormatError):
        read_trace(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"(9,)", b"(9,:"),  # NumPy's own reader lets an error of the tokenizer out
        (b"(9,)", b"(8,)"),
        (b"'<i4'", b"'|O8'"),
        (b"'<i4'", b"'<f4'"),
        (b"False", b"True "),
        (b"\x93NUMPY\x01", b"\x93NUMPY\x03"),
        (b"NUMPY", b"PICKL"),
    ],
)
def test_a_damaged_description_of_an_array_is_refused(tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "x.npz"
    write_trace(path, trace_of(LENGTHS))
    arrays = arrays_of(path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            data = buffer.getvalue()
            assert name != "tokens" or old in data
            archive.writestr(f"{name}.npy", data.replace(old, new, 1) if name == "tokens" else data)
    with pytest.raises(TraceFormatError, match="tokens"):
        read_trace(path)


def test_the_package_has_small_traces_of_many_kinds() -> None:
    traces = recorded()
    kinds = {trace.kind for trace in traces}
    assert {"code", "edit", "count", "prose", "json", "table", "dialogue", "sampled", "noise", "mixed"} <= kinds
    assert len({trace.name for trace in traces}) == len(traces) >= 10
    for trace in traces:
        assert len(trace.tokens) >= 200
        assert trace.facts["model"] == "tiny-qwen4exp-Q8_0.gguf"
        assert len(trace.facts["model_sha256"]) == 64
