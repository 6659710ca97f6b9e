"""Search for the MTP block: where it is found, which file is taken, and why the others are not."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from _gguf_bytes import (
    MIXER,
    N_EMBD,
    N_EXPERT,
    N_FF,
    N_STREAMS,
    N_TRUNK,
    STRING,
    TABLES,
    TOKENS,
    TRUNK,
    U16,
    U32,
    Typed,
    mtp_block,
    write_model,
    write_sidecar,
)

from pylucebox._errors import (
    LoadError,
    ModelFormatError,
    ModelNotFoundError,
    SidecarMismatchError,
    SidecarNotFoundError,
)
from pylucebox._gguf import read_file, read_model
from pylucebox._mtp_checks import Misfit
from pylucebox._mtp_layout import MtpLayout, find_block
from pylucebox._sidecar import SidecarVerdict, find_sidecar
from pylucebox._spec import SpecReason

Tensors = dict[str, Sequence[int]]
BLOCK = f"blk.{N_TRUNK}."


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "repo" / "quant" / "Name-Q4_K_M.gguf")


def chosen(verdict: SidecarVerdict) -> str:
    assert verdict.accepted
    assert verdict.reason_code is SpecReason.ACTIVE
    assert verdict.path is not None
    return verdict.path.name


def head(drop: Sequence[str] = (), add: Mapping[str, Sequence[int]] | None = None) -> Tensors:
    """Return the tensors of a self-contained MTP file, changed; names are within the block unless they start with /."""

    def full(name: str) -> str:
        return name[1:] if name.startswith("/") else f"{BLOCK}{name}"

    tensors = {**TABLES, **mtp_block()}
    for name in drop:
        del tensors[full(name)]
    return tensors | {full(name): shape for name, shape in (add or {}).items()}


# ---- where


@pytest.mark.parametrize("place", ["mtp-Name-Q8_0.gguf", "MTP/mtp-Name-Q8_0.gguf", "../MTP/mtp-Name-Q8_0.gguf"])
def test_file_beside_the_model_is_found(model: Path, place: str) -> None:
    path = write_sidecar(model.parent / place)
    verdict = find_sidecar(model)
    assert verdict.kind == "sidecar"
    assert verdict.path is not None
    assert verdict.path.samefile(path)
    assert verdict.layout is MtpLayout.SELF_CONTAINED
    assert (verdict.borrows_embedding, verdict.borrows_head) == (False, False)


def test_relative_model_path_works(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sidecar(model.parent / "MTP" / "mtp-Name-Q8_0.gguf")
    monkeypatch.chdir(model.parent)
    assert chosen(find_sidecar(model.name)) == "mtp-Name-Q8_0.gguf"


@pytest.mark.parametrize("name", ["Name-MTP.gguf", "xmtp-Name.gguf", "mtp-Name.bin", "mtp-Name-00002-of-00002.gguf"])
def test_other_names_are_not_looked_at(model: Path, name: str) -> None:
    write_sidecar(model.parent / name)
    assert find_sidecar(model).reason_code is SpecReason.NO_SIDECAR


def test_nothing_found_says_where_was_looked(model: Path) -> None:
    verdict = find_sidecar(model)
    assert (verdict.accepted, verdict.kind, verdict.path) == (False, "none", None)
    assert verdict.reason_code is SpecReason.NO_SIDECAR
    assert [Path(place).relative_to(model.parent.parent).as_posix() for place in verdict.looked_for] == [
        "quant/Name-Q4_K_M.gguf",
        "quant/mtp-*.gguf",
        "quant/MTP/mtp-*.gguf",
        "MTP/mtp-*.gguf",
    ]


@pytest.mark.parametrize("named", [1, 2])
def test_search_starts_at_the_first_split_whichever_is_named(tmp_path: Path, named: int) -> None:
    splits = [
        write_model(
            tmp_path / f"Name-0000{number}-of-00002.gguf",
            {name: shape for at, (name, shape) in enumerate(TRUNK.items()) if at % 2 == number - 1},
            split__no=Typed(U16, number - 1),
            split__count=Typed(U16, 2),
            split__tensors__count=len(TRUNK),
        )
        for number in (1, 2)
    ]
    write_sidecar(tmp_path / "MTP" / "mtp-Name-Q8_0.gguf")
    verdict = find_sidecar(splits[named - 1])
    assert chosen(verdict) == "mtp-Name-Q8_0.gguf"
    assert verdict.model_path == splits[0]
    assert verdict.reason == "it fits the model"


def test_block_inside_the_model_is_used_before_any_file(tmp_path: Path) -> None:
    path = write_model(tmp_path / "Name.gguf", {**TRUNK, **mtp_block()}, n_nextn=1)
    write_sidecar(tmp_path / "mtp-Name.gguf")
    verdict = find_sidecar(path)
    assert (verdict.kind, verdict.path, verdict.layout) == ("in-file", path, MtpLayout.IN_FILE)


def test_block_inside_that_cannot_be_loaded_gives_way_to_a_file_and_is_reported(tmp_path: Path) -> None:
    block = {name: shape for name, shape in mtp_block().items() if "hc_head" not in name}
    path = write_model(tmp_path / "Name.gguf", {**TRUNK, **block}, n_nextn=1)
    alone = find_sidecar(path)
    assert alone.reason_code is SpecReason.SIDECAR_LAYOUT
    assert "hc_head" in alone.reason
    write_sidecar(tmp_path / "mtp-Name.gguf")
    verdict = find_sidecar(path)
    assert chosen(verdict) == "mtp-Name.gguf"
    assert verdict.candidates[1].reason_code is SpecReason.SIDECAR_LAYOUT


def test_link_is_searched_around_before_its_target(tmp_path: Path) -> None:
    blob = write_model(tmp_path / "blobs" / "Name.gguf")
    link = tmp_path / "snapshot" / "Name.gguf"
    link.parent.mkdir()
    link.symlink_to(blob)
    write_sidecar(blob.parent / "mtp-Name-target.gguf")
    assert chosen(find_sidecar(link)) == "mtp-Name-target.gguf"
    write_sidecar(link.parent / "mtp-Name-target2.gguf")
    assert chosen(find_sidecar(link)) == "mtp-Name-target2.gguf"


def test_download_cache_of_links_to_nameless_blobs_is_understood(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    model, sidecar = write_model(blobs / "aa"), write_sidecar(blobs / "bb")
    snapshot = tmp_path / "snapshots" / "rev"
    (snapshot / "MTP").mkdir(parents=True)
    (snapshot / "Name.gguf").symlink_to(model)
    (snapshot / "MTP" / "mtp-Name.gguf").symlink_to(sidecar)
    assert chosen(find_sidecar(snapshot / "Name.gguf")) == "mtp-Name.gguf"


def test_one_file_reached_in_two_ways_is_one_candidate(model: Path) -> None:
    path = write_sidecar(model.parent / "mtp-Name-Q8_0.gguf")
    (model.parent / "mtp-again.gguf").symlink_to(path)
    assert len(find_sidecar(model).candidates) == 1


# ---- which


def order(model: Path) -> list[str]:
    verdict = find_sidecar(model)
    codes = [candidate.reason_code for candidate in verdict.candidates]
    assert codes == [SpecReason.ACTIVE] + [SpecReason.NOT_CHOSEN] * (len(codes) - 1)
    return [candidate.path.name for candidate in verdict.candidates]


def test_base_name_counts_before_quantisation(model: Path) -> None:
    for name in ("mtp-Other-Q4_K_M.gguf", "mtp-Name-BF16.gguf"):
        write_sidecar(model.parent / name)
    assert order(model) == ["mtp-Name-BF16.gguf", "mtp-Other-Q4_K_M.gguf"]


def test_same_quantisation_then_the_nearest(model: Path) -> None:
    for name in ("mtp-Name-BF16.gguf", "mtp-Name-Q8_0.gguf", "mtp-Name-IQ4_XS.gguf", "mtp-Name-Q4_K_M.gguf"):
        write_sidecar(model.parent / name)
    expected = ["mtp-Name-Q4_K_M.gguf", "mtp-Name-IQ4_XS.gguf", "mtp-Name-Q8_0.gguf", "mtp-Name-BF16.gguf"]
    assert order(model) == expected


def test_nearer_place_then_borrowed_tables_then_name(model: Path) -> None:
    write_sidecar(model.parent.parent / "MTP" / "mtp-Name-Q8_0.gguf")
    write_sidecar(model.parent / "MTP" / "mtp-Name-Q8_0.gguf")
    write_sidecar(model.parent / "mtp-Name.B-Q8_0.gguf")
    write_sidecar(model.parent / "mtp-Name-shared-Q8_0.gguf", mtp_block())
    verdict = find_sidecar(model)
    places = [os.path.relpath(candidate.path, model.parent) for candidate in verdict.candidates]
    assert places == [
        "mtp-Name-shared-Q8_0.gguf",
        "MTP/mtp-Name-Q8_0.gguf",
        "../MTP/mtp-Name-Q8_0.gguf",
        "mtp-Name.B-Q8_0.gguf",
    ]
    write_sidecar(model.parent / "mtp-Name-Q8_0.gguf")
    assert order(model)[:2] == ["mtp-Name-shared-Q8_0.gguf", "mtp-Name-Q8_0.gguf"]


def test_decorated_names_have_the_same_base(tmp_path: Path) -> None:
    model = write_model(tmp_path / "Name-3.8-UD-Q4_K_XL.gguf")
    write_sidecar(tmp_path / "mtp-Name-3.8-shared-Q8_0.gguf")
    assert find_sidecar(model).reason == "it fits the model"


def test_file_under_another_name_is_used_if_it_fits_and_the_reason_says_so(model: Path) -> None:
    write_sidecar(model.parent / "mtp-renamed.gguf")
    verdict = find_sidecar(model)
    assert chosen(verdict) == "mtp-renamed.gguf"
    assert "name" in verdict.reason


def test_file_that_does_not_fit_never_wins_however_well_it_is_named(model: Path) -> None:
    write_sidecar(model.parent / "mtp-Name-Q4_K_M.gguf", tokens=("a", "b", "c", "x"))
    write_sidecar(model.parent / "mtp-zzz.gguf")
    verdict = find_sidecar(model)
    assert chosen(verdict) == "mtp-zzz.gguf"
    assert verdict.candidates[1].reason_code is SpecReason.SIDECAR_MISMATCH


# ---- fits or not

MISMATCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "architecture": ("general.architecture", {"general__architecture": "qwen35"}),
    "trunk": ("trunk layers (block_count - nextn_predict_layers)", {"qwen4exp__block_count": 4, "block": 3}),
    "vocabulary": ("vocabulary size", {"tokens": ("a", "b", "c", "d", "<end>"), "rows": 5}),
    "tokens": ("SHA-256 of tokenizer.ggml.tokens", {"tokens": ("a", "b", "d", "<end>")}),
}


@pytest.mark.parametrize("case", MISMATCHES)
def test_file_of_another_model_is_declined_with_the_difference(model: Path, case: str) -> None:
    field, changed = MISMATCHES[case][0], dict(MISMATCHES[case][1])
    rows = changed.pop("rows", 4)
    tables = {"token_embd.weight": [N_EMBD, rows], "output.weight": [N_EMBD, rows]}
    path = model.parent / "mtp-Name-Q8_0.gguf"
    write_sidecar(path, {**tables, **mtp_block(changed.pop("block", N_TRUNK))}, **changed)
    verdict = find_sidecar(model)
    assert (verdict.accepted, verdict.reason_code) == (False, SpecReason.SIDECAR_MISMATCH)
    assert field in verdict.reason
    with pytest.raises(SidecarMismatchError) as caught:
        find_sidecar(model, path)
    assert caught.value.field == field
    assert caught.value.model_value != caught.value.sidecar_value
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("key", "n_embd", "n_streams"),
    [("embedding_length", 2 * N_EMBD, N_STREAMS), ("hyper_connection.count", N_EMBD, 2 * N_STREAMS)],
)
def test_file_of_other_width_is_declined(model: Path, key: str, n_embd: int, n_streams: int) -> None:
    block = mtp_block(n_embd=n_embd, n_streams=n_streams)
    tensors = {**block, "output.weight": [n_embd, len(TOKENS)]}
    changed: dict[str, Any] = {"qwen4exp__embedding_length": n_embd, "qwen4exp__hyper_connection__count": n_streams}
    path = write_sidecar(model.parent / "mtp-Name.gguf", tensors, **changed)
    with pytest.raises(SidecarMismatchError) as caught:
        find_sidecar(model, path)
    assert caught.value.field == f"qwen4exp.{key}"


# ---- layouts

MIXER_NAMES = [f"nextn.hc_head_{kind}.weight" for kind in ("norm", "down", "up")]
OWN_SHAPES = {name: mtp_block()[f"{BLOCK}{name}"] for name in MIXER_NAMES}
OWN_MIXER = {name.replace("nextn.hc_head", "output_hc"): shape for name, shape in OWN_SHAPES.items()}

LOADED: dict[str, tuple[Tensors, MtpLayout, bool, bool]] = {
    "self-contained": (head(), MtpLayout.SELF_CONTAINED, False, False),
    "all borrowed": (mtp_block(), MtpLayout.BORROWED_TABLES, True, True),
    "head borrowed": (head(drop=["/output.weight"]), MtpLayout.BORROWED_TABLES, False, True),
    "trunk's mixer as well": ({**head(), **MIXER}, MtpLayout.WITH_TRUNK_MIXER, False, False),
    "gammas per stream": (
        head(add={"nextn.hnorm.weight": [N_EMBD, N_STREAMS], "nextn.hc_head_norm.weight": [N_EMBD, N_STREAMS]}),
        MtpLayout.SELF_CONTAINED,
        False,
        False,
    ),
    "fused experts": (
        head(
            drop=["ffn_gate_exps.weight", "ffn_up_exps.weight"],
            add={"ffn_gate_up_exps.weight": [N_EMBD, 2 * N_FF, N_EXPERT]},
        ),
        MtpLayout.SELF_CONTAINED,
        False,
        False,
    ),
    "fused attention with bias": (
        head(
            drop=["attn_q.weight", "attn_k.weight", "attn_v.weight"],
            add={"attn_qkv.weight": [N_EMBD], "attn_qkv.bias": [N_EMBD]},
        ),
        MtpLayout.SELF_CONTAINED,
        False,
        False,
    ),
    "float scales": (head(add={"attn_output.scale": [1]}), MtpLayout.SELF_CONTAINED, False, False),
    "mixer under the trunk's names": ({**head(drop=MIXER_NAMES), **OWN_MIXER}, MtpLayout.MODEL_MIXER, False, False),
    "mixer's norm as shared head norm": (
        {**head(drop=MIXER_NAMES, add={"nextn.shared_head_norm.weight": [N_EMBD * N_STREAMS]}), **OWN_MIXER},
        MtpLayout.SHARED_HEAD_NORM,
        False,
        False,
    ),
    "mixer under short names": (
        head(drop=MIXER_NAMES, add={name.replace("hc_head", "hc"): OWN_SHAPES[name] for name in MIXER_NAMES}),
        MtpLayout.SELF_CONTAINED,
        False,
        False,
    ),
    "split projection": (
        head(
            drop=["nextn.eh_proj.weight"],
            add={f"nextn.{name}.weight": [N_EMBD, N_EMBD] for name in ("fc_embd", "fc_hidden")},
        ),
        MtpLayout.SPLIT_PROJECTION,
        False,
        False,
    ),
    "subset of the vocabulary": (
        head(drop=["/token_embd.weight"], add={"/d2t": [3], "/output.weight": [N_EMBD, 3]}),
        MtpLayout.SUBSET_HEAD,
        True,
        False,
    ),
    "private head": (
        head(add={"nextn.shared_head_head.weight": [N_EMBD, len(TOKENS)]}),
        MtpLayout.PRIVATE_HEAD,
        False,
        False,
    ),
    "block numbered zero": ({**TABLES, **mtp_block(0)}, MtpLayout.OTHER_BLOCK, False, False),
    "block numbered too high": (mtp_block(9), MtpLayout.OTHER_BLOCK, True, True),
}


@pytest.mark.parametrize("case", LOADED)
def test_layouts_that_are_loaded(model: Path, case: str) -> None:
    tensors, layout, borrows_embedding, borrows_head = LOADED[case]
    path = write_sidecar(model.parent / "mtp-Name.gguf", tensors)
    for verdict in (find_sidecar(model), find_sidecar(model, path)):
        assert verdict.accepted
        assert verdict.layout is layout
        assert (verdict.borrows_embedding, verdict.borrows_head) == (borrows_embedding, borrows_head)


DECLINED: dict[str, tuple[Tensors, MtpLayout, str]] = {
    "mixer under the trunk's names, in part": (
        {**head(drop=MIXER_NAMES), **dict(list(OWN_MIXER.items())[:2])},
        MtpLayout.WITH_TRUNK_MIXER,
        "hc_head_norm",
    ),
    "mixer under the trunk's names, too narrow": (
        {**head(drop=MIXER_NAMES), **MIXER},
        MtpLayout.MODEL_MIXER,
        "output_hc_norm.weight has shape (4), shape (8) is expected",
    ),
    "shared head norm beside a mixer": (
        head(add={"nextn.shared_head_norm.weight": [N_EMBD * N_STREAMS]}),
        MtpLayout.SELF_CONTAINED,
        "shared_head_norm",
    ),
    "mixer under short names, in part": (
        head(drop=MIXER_NAMES, add={"nextn.hc_norm.weight": [8], "nextn.hc_up.weight": [3, 8]}),
        MtpLayout.SELF_CONTAINED,
        "hc_head_norm",
    ),
    "half a projection": (
        head(drop=["nextn.eh_proj.weight"], add={"nextn.fc_embd.weight": [N_EMBD, N_EMBD]}),
        MtpLayout.SELF_CONTAINED,
        "nextn.eh_proj",
    ),
    "narrow half of a projection": (
        head(
            drop=["nextn.eh_proj.weight"],
            add={"nextn.fc_embd.weight": [N_EMBD, N_EMBD], "nextn.fc_hidden.weight": [2, N_EMBD]},
        ),
        MtpLayout.SPLIT_PROJECTION,
        "nextn.fc_hidden.weight has shape (2, 4), shape (4, 4) is expected",
    ),
    "list of draft ids that the head does not follow": (
        head(add={"/d2t": [3]}),
        MtpLayout.SUBSET_HEAD,
        "output.weight has shape (4, 4), shape (4, 3) is expected",
    ),
    "list of draft ids without a head": (
        head(drop=["/output.weight"], add={"/d2t": [3]}),
        MtpLayout.SUBSET_HEAD,
        "d2t has no LM head",
    ),
    "ids beyond the vocabulary": (
        head(add={"/d2t": [5], "/output.weight": [N_EMBD, 5]}),
        MtpLayout.SUBSET_HEAD,
        "d2t has i64 values in shape (5)",
    ),
    "subset of the vocabulary without a list": (
        head(add={"/output.weight": [N_EMBD, 3]}),
        MtpLayout.SELF_CONTAINED,
        "output.weight has shape (4, 3), shape (4, 4) is expected",
    ),
    "inverse list": (head(add={"/t2d": [4]}), MtpLayout.SELF_CONTAINED, "t2d"),
    "private head of other size": (
        head(add={"nextn.shared_head_head.weight": [4, 9]}),
        MtpLayout.PRIVATE_HEAD,
        "nextn.shared_head_head.weight has shape (4, 9)",
    ),
    "global names": ({**TABLES, "nextn.eh_projection.weight": [4, 4]}, MtpLayout.GLOBAL_NAMES, "no block number"),
    "blocks of other numbers": (
        {**TABLES, **mtp_block(8), **mtp_block(9)},
        MtpLayout.OTHER_BLOCK,
        "no tensors for block 2, but for [8, 9]",
    ),
    "whole model": ({**TRUNK, **mtp_block()}, MtpLayout.WHOLE_MODEL, "open it as the model"),
    "part of a mixer": (head(drop=MIXER_NAMES[:1]), MtpLayout.SELF_CONTAINED, "hc_head_norm"),
    "no indexer": (head(drop=["indexer.q_proj.weight"]), MtpLayout.SELF_CONTAINED, "indexer.q_proj"),
    "tensor nobody asks for": (head(add={"extra.weight": [1]}), MtpLayout.SELF_CONTAINED, "extra.weight"),
    "wrong shape": (head(add={"nextn.eh_proj.weight": [N_EMBD, N_EMBD]}), MtpLayout.SELF_CONTAINED, "eh_proj"),
}


@pytest.mark.parametrize("case", DECLINED)
def test_layouts_that_are_recognised_and_declined(model: Path, case: str) -> None:
    tensors, layout, reason = DECLINED[case]
    path = write_sidecar(model.parent / "mtp-Name.gguf", tensors)
    verdict = find_sidecar(model)
    assert (verdict.accepted, verdict.reason_code) == (False, SpecReason.SIDECAR_LAYOUT)
    assert verdict.candidates[0].layout is layout
    assert reason in verdict.reason
    with pytest.raises(ModelFormatError) as caught:
        find_sidecar(model, path)
    assert reason in str(caught.value)


# ---- contents


def floats(path: Path, name: str, values: Sequence[float]) -> None:
    """Overwrite a tensor."""
    file = read_file(path)
    raw = bytearray(path.read_bytes())
    start = file.data_offset + file.tensors[name].offset
    raw[start : start + 4 * len(values)] = struct.pack(f"<{len(values)}f", *values)
    path.write_bytes(raw)


@pytest.mark.parametrize("name", ["nextn.enorm", "nextn.hnorm", "hc_attn_norm", "attn_q_norm", "indexer.k_norm"])
def test_norm_that_lacks_the_one_of_converters_is_declined(model: Path, name: str) -> None:
    path = write_sidecar(model.parent / "mtp-Name.gguf")
    n_values = read_file(path).tensors[f"{BLOCK}{name}.weight"].n_elements
    floats(path, f"{BLOCK}{name}.weight", [0.1, -0.1] * (n_values // 2))
    verdict = find_sidecar(model)
    assert verdict.reason_code is SpecReason.SIDECAR_LAYOUT
    assert f"{BLOCK}{name}.weight has" in verdict.reason
    assert "negative weights" in verdict.reason
    assert "the one that checkpoints leave out" in verdict.reason
    floats(path, f"{BLOCK}{name}.weight", [float("nan")] * n_values)
    assert "100% negative" in find_sidecar(model).reason


def test_small_weights_of_a_norm_are_no_reason_to_decline(model: Path) -> None:
    path = write_sidecar(model.parent / "mtp-Name.gguf")
    floats(path, f"{BLOCK}nextn.hnorm.weight", [0.05] * 7 + [-0.01])
    assert find_sidecar(model).accepted


LISTS: dict[str, tuple[Any, str]] = {
    "attention.head_count_kv": (
        Typed(U32, [1, 1, 0]),
        f"{BLOCK}attn_k.weight has shape (4, 6), shape (4, 0) is expected",
    ),
    "attention.compress_ratios": (
        Typed(U32, [4, 4]),
        "qwen4exp.attention.compress_ratios has 2 entries, one for each of 3 layers is expected",
    ),
}


@pytest.mark.parametrize("key", LISTS)
def test_list_that_leaves_the_block_out_is_declined(model: Path, key: str) -> None:
    value, told = LISTS[key]
    write_sidecar(model.parent / "mtp-Name.gguf", **{f"qwen4exp.{key}": value})
    assert told in find_sidecar(model).reason


def test_list_with_an_entry_for_the_block_is_followed(model: Path) -> None:
    write_sidecar(model.parent / "mtp-Name.gguf", **{"qwen4exp.attention.head_count_kv": Typed(U32, [7, 7, 1])})
    assert find_sidecar(model).accepted


def test_candidate_tells_the_tensor_what_was_seen_and_expected(model: Path) -> None:
    path = write_sidecar(model.parent / "mtp-Name.gguf", head(add={"attn_q.weight": [N_EMBD, 5]}))
    block = find_block(read_model(path))
    assert block is not None
    assert block.misfit == Misfit(f"{BLOCK}attn_q.weight", "shape (4, 5)", "shape (4, 24)")


@pytest.mark.parametrize(("n_nextn", "n_layer"), [(2, 4), (0, 2), (3, 2)])
def test_numbers_of_blocks_that_would_stop_the_native_library_are_declined(
    model: Path, n_nextn: int, n_layer: int
) -> None:
    changed: dict[str, Any] = {"qwen4exp__nextn_predict_layers": n_nextn, "qwen4exp__block_count": n_layer}
    write_sidecar(model.parent / "mtp-Name.gguf", **changed)
    verdict = find_sidecar(model)
    assert verdict.reason_code is SpecReason.SIDECAR_LAYOUT
    assert f"nextn_predict_layers is {n_nextn} with block_count {n_layer}" in verdict.reason


# ---- files that cannot be used


def test_file_without_mtp_block_is_declined(model: Path) -> None:
    path = write_model(model.parent / "mtp-Name.gguf", TABLES)
    assert find_sidecar(model).reason_code is SpecReason.NO_MTP_IN_FILE
    with pytest.raises(ModelFormatError, match="no MTP block"):
        find_sidecar(model, path)


def broken(path: Path) -> None:
    path.write_bytes(write_sidecar(path).read_bytes()[:300])


def looped(path: Path) -> None:
    path.symlink_to(path.name)


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def dangling(path: Path) -> None:
    path.symlink_to("nowhere")


def half_split(path: Path) -> None:
    write_sidecar(path, split__no=Typed(U16, 0), split__count=Typed(U16, 2))


def wrong_type(path: Path) -> None:
    write_sidecar(path, qwen4exp__nextn_predict_layers="one")


def no_block_count(path: Path) -> None:
    write_sidecar(path, qwen4exp__block_count=None)


@pytest.mark.parametrize("make", [broken, looped, a_pipe, Path.mkdir, dangling, half_split, wrong_type, no_block_count])
def test_search_never_fails_over_a_file_beside_the_model(model: Path, make: Callable[[Path], None]) -> None:
    path = model.parent / "mtp-Name-Q4_K_M.gguf"
    make(path)
    verdict = find_sidecar(model)
    assert (verdict.accepted, verdict.reason_code) == (False, SpecReason.SIDECAR_UNREADABLE)
    assert path.name in verdict.reason
    write_sidecar(model.parent / "mtp-zzz.gguf")
    assert chosen(find_sidecar(model)) == "mtp-zzz.gguf"
    with pytest.raises(LoadError):
        find_sidecar(model, path)


def test_refusal_of_several_files_reports_the_nearest_and_counts_the_rest(model: Path) -> None:
    write_model(model.parent / "mtp-Name-Q4_K_M.gguf", TABLES)
    broken(model.parent / "mtp-Other.gguf")
    verdict = find_sidecar(model)
    assert verdict.reason.startswith("mtp-Name-Q4_K_M.gguf")
    assert "1 more" in verdict.reason
    assert len(verdict.candidates) == 2


# ---- requests


@pytest.mark.parametrize("request_", ["off", False])
def test_off_looks_for_nothing(model: Path, request_: Any) -> None:
    write_sidecar(model.parent / "mtp-Name.gguf")
    verdict = find_sidecar(model, request_)
    assert (verdict.accepted, verdict.reason_code, verdict.looked_for) == (False, SpecReason.OFF_REQUESTED, ())


def test_path_is_taken_without_a_search(model: Path, tmp_path: Path) -> None:
    write_sidecar(model.parent / "mtp-Name-Q4_K_M.gguf")
    path = write_sidecar(tmp_path / "elsewhere" / "any name.gguf")
    verdict = find_sidecar(model, str(path))
    assert (verdict.path, verdict.kind) == (path, "sidecar")
    assert verdict.looked_for == (str(path),)


def test_path_that_does_not_exist(model: Path, tmp_path: Path) -> None:
    with pytest.raises(SidecarNotFoundError) as caught:
        find_sidecar(model, tmp_path / "no.gguf")
    assert caught.value.looked_for == (str(tmp_path / "no.gguf"),)


def test_path_of_the_model_itself_asks_for_the_block_inside(tmp_path: Path) -> None:
    path = write_model(tmp_path / "Name.gguf", {**TRUNK, **mtp_block()}, n_nextn=1)
    (tmp_path / "link.gguf").symlink_to(path)
    assert find_sidecar(path, tmp_path / "link.gguf").kind == "in-file"
    plain = write_model(tmp_path / "plain.gguf")
    with pytest.raises(ModelFormatError, match="no MTP block"):
        find_sidecar(plain, plain)


def test_other_architectures_run_without_drafts_and_say_why(tmp_path: Path) -> None:
    model = write_model(tmp_path / "other.gguf", TABLES, general__architecture="llama")
    sidecar = write_sidecar(tmp_path / "mtp-other.gguf")
    verdict = find_sidecar(model)
    assert verdict.reason_code is SpecReason.UNSUPPORTED_ARCH
    assert "llama" in verdict.reason
    with pytest.raises(SidecarMismatchError) as caught:
        find_sidecar(model, sidecar)
    assert caught.value.field == "general.architecture"


# ---- the model


def test_model_that_cannot_be_read_is_an_error_even_in_a_search(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        find_sidecar(tmp_path / "no.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    for request_ in ("auto", "off"):
        with pytest.raises(ModelFormatError):
            find_sidecar(tmp_path / "broken.gguf", request_)


def test_mtp_file_given_as_the_model_is_refused_with_advice(tmp_path: Path) -> None:
    path = write_sidecar(tmp_path / "mtp-Name.gguf")
    with pytest.raises(ModelFormatError, match="argument mtp"):
        find_sidecar(path, "off")


@pytest.mark.parametrize("n_nextn", [2, 3])
def test_model_whose_layers_are_all_mtp_is_refused(tmp_path: Path, n_nextn: int) -> None:
    changed: dict[str, Any] = {"qwen4exp__nextn_predict_layers": n_nextn, "qwen4exp__block_count": 2}
    path = write_model(tmp_path / "Name.gguf", **changed)
    with pytest.raises(ModelFormatError):
        find_sidecar(path)


def test_verdict_goes_to_json(model: Path) -> None:
    write_sidecar(model.parent / "mtp-Name.gguf")
    write_sidecar(model.parent / "mtp-x.gguf", tokens=("x",))
    out = json.loads(json.dumps(find_sidecar(model).as_dict()))
    assert out["reason_code"] == "active"
    assert out["layout"] == "self-contained"
    assert [candidate["reason_code"] for candidate in out["candidates"]] == ["active", "sidecar-layout"]
    assert json.loads(json.dumps(find_sidecar(model, "off").as_dict()))["path"] is None


def test_draft_vocabulary_is_in_the_verdict(model: Path) -> None:
    write_sidecar(model.parent / "mtp-Name.gguf", head(add={"/d2t": [3], "/output.weight": [N_EMBD, 3]}))
    verdict = find_sidecar(model)
    assert verdict.reason == "it fits the model; its head covers 3 of 4 tokens"
    assert (verdict.n_draft_vocab, verdict.as_dict()["n_draft_vocab"]) == (3, 3)


def test_tokenizers_without_token_list_are_compared_by_size(tmp_path: Path) -> None:
    no_list: dict[str, Any] = {"tokenizer__ggml__tokens": None, "qwen4exp__vocab_size": 4}
    model = write_model(tmp_path / "Name.gguf", **no_list)
    write_sidecar(tmp_path / "mtp-Name.gguf", **no_list)
    assert find_sidecar(model).accepted
    write_sidecar(tmp_path / "mtp-Name.gguf", tokenizer__ggml__tokens=Typed(STRING, ["a", "b", "c", "d"]))
    assert find_sidecar(model).reason_code is SpecReason.SIDECAR_MISMATCH
