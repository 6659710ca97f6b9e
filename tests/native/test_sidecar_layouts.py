"""A block drafts the same in every layout, bit for bit; what nearly is a layout is refused, and ends no process."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from _layouts import (
    LAYOUTS,
    TABLES,
    TRUNK_MIXER,
    Stored,
    Tensors,
    draft_ids,
    layout_b,
    layout_c,
    layout_e,
    layout_i,
    load,
    metadata_of,
    mixer,
    picked,
    renamed,
    save,
    split_rows,
    with_ratios,
    without,
)

from pylucebox import Engine, LoadError, ModelFormatError, find_sidecar
from pylucebox._build import PACKAGE_DIR
from pylucebox._gguf import GgufModel
from pylucebox._gguf_write import MetaPair
from pylucebox._model import Model, ModelOptions
from pylucebox._mtp_layout import MtpLayout
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._sampling import SamplingParams
from pylucebox.testing import K_QUANT_SPEC, TinySpec, write_tiny_model

PROMPT = "One, two, three and four. The quick brown fox"
OPTIONS = SessionOptions(n_ctx=512, n_ubatch=128, max_width=8)
Chain = tuple[list[int], list[float]]


@dataclass(frozen=True)
class Pair:
    """A model and its MTP file in the standard layout, read whole."""

    path: Path
    model: Tensors
    header: GgufModel
    head: Tensors
    block: int

    def write(self, path: Path, layout: str) -> Path:
        return save(path, metadata_of(self.header), LAYOUTS[layout](dict(self.head), self.block, self.model))


def pair_of(model: Path, sidecar: Path) -> Pair:
    header, head = load(sidecar)
    n_layer = header.head.get_int("qwen4exp.block_count")
    assert n_layer is not None
    return Pair(model, load(model)[1], header, head, n_layer - 1)


@pytest.fixture(scope="module", params=["built-in", "random q4_K", "random bf16"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    if request.param == "built-in":
        demo = PACKAGE_DIR / "demo_model"
        return pair_of(demo / "tiny-qwen4exp-Q8_0.gguf", demo / "MTP" / "mtp-tiny-qwen4exp-Q8_0.gguf")
    spec = K_QUANT_SPEC if "q4_K" in request.param else TinySpec()
    spec = replace(spec, mtp="sidecar", weight_type=request.param.split()[1])
    files = write_tiny_model(tmp_path_factory.mktemp("pair") / "m.gguf", spec)
    assert files.sidecar is not None
    return pair_of(files.model, files.sidecar)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    files = write_tiny_model(tmp_path_factory.mktemp("small") / "m.gguf", TinySpec(mtp="sidecar"))
    assert files.sidecar is not None
    return pair_of(files.model, files.sidecar)


def chains(model: Path, sidecar: Path | None, *, n_places: int = 6) -> list[Chain]:
    """Draft seven tokens, greedily, at some places of a text."""
    opened = Model(ModelOptions(path=model, mtp_path=sidecar, mtp_in_file=sidecar is None))
    session = NativeSession(opened, OPTIONS)
    ids = opened.tokenize(PROMPT, add_special=False, parse_special=True)
    found = []
    for n_prompt in range(len(ids) - n_places, len(ids)):
        session.clear(0)
        sampler = session.open_sampler(SamplingParams(temperature=0, seed=0), None)
        session.prefill(0, ids[:n_prompt], sampler, use_mtp=True)
        found.append(session.draft(0, 7))
    session.close()
    opened.close()
    return found


@pytest.fixture(scope="module")
def expected(pair: Pair) -> list[Chain]:
    return chains(pair.path, pair.header.path)


EXPECTED_LAYOUTS = {
    "A": MtpLayout.SELF_CONTAINED,
    "B": MtpLayout.BORROWED_TABLES,
    "C": MtpLayout.MODEL_MIXER,
    "D": MtpLayout.WITH_TRUNK_MIXER,
    "E": MtpLayout.SPLIT_PROJECTION,
    "F": MtpLayout.SHARED_HEAD_NORM,
    "F, norm once": MtpLayout.SHARED_HEAD_NORM,
    "I": MtpLayout.PRIVATE_HEAD,
    "J": MtpLayout.OTHER_BLOCK,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_drafts_the_same(pair: Pair, expected: list[Chain], tmp_path: Path, layout: str) -> None:
    path = pair.write(tmp_path / "mtp-head.gguf", layout)
    verdict = find_sidecar(pair.path, path)
    assert verdict.layout is EXPECTED_LAYOUTS[layout]
    assert (verdict.borrows_embedding, verdict.borrows_head) == (layout == "B", layout == "B")
    assert chains(pair.path, path) == expected


def test_block_in_the_models_file_drafts_the_same(pair: Pair, expected: list[Chain], tmp_path: Path) -> None:
    model = load(pair.path)[0]
    block = layout_b(dict(pair.head), pair.block, pair.model)
    path = save(tmp_path / "whole.gguf", metadata_of(model, pair.header), pair.model | block)
    assert find_sidecar(path).layout is MtpLayout.IN_FILE
    assert chains(path, None) == expected


def test_block_in_a_split_model_drafts_the_same_in_another_layout(small: Pair, tmp_path: Path) -> None:
    model = load(small.path)[0]
    ids = range(small.head["output.weight"].shape[1])
    block = without(layout_e(dict(small.head), small.block, small.model, ids), [*TABLES, "d2t"])
    tensors = list((small.model | block).items())
    for number in range(3):
        split = [
            MetaPair("split.no", struct.pack("<IH", 2, number)),  # u16, u16 and i32, as upstream's tool writes them
            MetaPair("split.count", struct.pack("<IH", 2, 3)),
            MetaPair("split.tensors.count", struct.pack("<Ii", 5, len(tensors))),
        ]
        keys = [*metadata_of(model, small.header), *split] if number == 0 else split
        save(tmp_path / f"whole-{number + 1:05}-of-00003.gguf", keys, dict(tensors[number::3]))
    path = tmp_path / "whole-00001-of-00003.gguf"
    verdict = find_sidecar(path)
    assert (verdict.kind, verdict.layout) == ("in-file", MtpLayout.IN_FILE)
    assert chains(path, None) == chains(small.path, small.header.path)


# ---- blocks with dense attention


@pytest.mark.parametrize("indexer", [True, False], ids=["with index tensors", "without"])
def test_block_without_a_compress_ratio_attends_densely(tmp_path: Path, indexer: bool) -> None:
    demo = PACKAGE_DIR / "demo_model"
    pair = pair_of(demo / "tiny-qwen4exp-Q8_0.gguf", demo / "MTP" / "mtp-tiny-qwen4exp-Q8_0.gguf")
    left_out = [] if indexer else [name for name in pair.head if ".indexer." in name]
    metadata = with_ratios(metadata_of(pair.header), [0, 0, 0, 4, 0, 0, 0, 4, 0])
    path = save(tmp_path / "mtp-dense.gguf", metadata, without(dict(pair.head), left_out))
    assert find_sidecar(pair.path, path).accepted
    # within the index's budget of 128 tokens both kinds of attention see all of the text
    found, sparse = chains(pair.path, path), chains(pair.path, pair.header.path)
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in sparse]
    assert np.allclose([probs for _, probs in found], [probs for _, probs in sparse], atol=1e-3)


def test_trunk_without_compress_ratios_attends_densely(small: Pair, tmp_path: Path) -> None:
    model = load(small.path)[0]
    block = layout_b(dict(small.head), small.block, small.model)
    metadata = with_ratios(metadata_of(model, small.header), [0, 0, 0, 0, 4])
    path = save(tmp_path / "whole.gguf", metadata, small.model | block)
    assert all(len(tokens) == 7 for tokens, _ in chains(path, None))


# ---- draft vocabularies


def subset(small: Pair, path: Path, ids: Iterable[int]) -> list[Chain]:
    """Return the drafts of a head that covers some tokens."""
    tensors = layout_e(dict(small.head), small.block, small.model, ids)
    return chains(small.path, save(path, metadata_of(small.header), tensors))


def test_draft_that_is_covered_stays_and_its_probability_is_among_the_covered(small: Pair, tmp_path: Path) -> None:
    full = chains(small.path, small.header.path)
    used = {token for tokens, _ in full for token in tokens}
    found = subset(small, tmp_path / "mtp-used.gguf", sorted(used | {0, 1}))
    assert [tokens for tokens, _ in found] == [tokens for tokens, _ in full]
    assert (np.array([probs for _, probs in found]) > np.array([probs for _, probs in full])).all()


def test_only_covered_tokens_are_drafted(small: Pair, tmp_path: Path) -> None:
    full = chains(small.path, small.header.path)
    used = {token for tokens, _ in full for token in tokens}
    ids = sorted(set(range(small.head["output.weight"].shape[1])) - used)[::-3]
    found = subset(small, tmp_path / "mtp-unused.gguf", ids)
    assert {token for tokens, _ in found for token in tokens} <= set(ids)
    assert subset(small, tmp_path / "mtp-one.gguf", [97]) == [([97] * 7, [1.0] * 7)] * len(found)


def test_text_with_a_draft_vocabulary_is_the_text_without(small: Pair, tmp_path: Path) -> None:
    tensors = layout_e(dict(small.head), small.block, small.model, range(0, 288, 2))
    path = save(tmp_path / "mtp-subset.gguf", metadata_of(small.header), tensors)
    with Engine(small.path, mtp="off", n_threads=1, n_ctx=512) as engine:
        expected = engine.generate(PROMPT, max_tokens=48).token_ids
    with Engine(small.path, mtp=path, n_threads=1, n_ctx=512, verify_width=4) as engine:
        reply = engine.generate(PROMPT, max_tokens=48)
    assert reply.token_ids == expected
    assert reply.stats.num_draft_tokens > 0


# ---- near misses: each differs from a layout that loads in one thing

Change = Callable[[Tensors, int, Tensors], Tensors]


def narrow(tensor: Stored) -> Stored:
    """Drop the last row."""
    rows = tensor.rows()[:-1]
    return replace(tensor, shape=(tensor.shape[0], len(rows)), data=rows.tobytes())


def unfolded(tensor: Stored) -> Stored:
    return replace(tensor, data=(np.frombuffer(tensor.data, "<f4") - np.float32(1)).tobytes())


def changed(tensors: Tensors, name: str, change: Callable[[Stored], Stored]) -> Tensors:
    return tensors | {name: change(tensors[name])}


def d2t(ids: Iterable[int]) -> Change:
    def change(tensors: Tensors, block: int, model: Tensors) -> Tensors:  # noqa: ARG001
        listed = list(ids)
        return tensors | {
            "d2t": draft_ids(listed),
            "output.weight": picked(tensors["output.weight"], range(len(listed))),
        }

    return change


NEAR_MISSES: dict[str, tuple[Change, str]] = {
    "A: mixer in part": (lambda t, b, _: without(t, [mixer(b)[2]]), "hc_head_up"),
    "A: norm without the one": (
        lambda t, b, _: changed(t, f"blk.{b}.nextn.enorm.weight", unfolded),
        "negative weights",
    ),
    "A: narrow projection": (lambda t, b, _: changed(t, f"blk.{b}.nextn.eh_proj.weight", narrow), "eh_proj"),
    "A: narrow indexer": (lambda t, b, _: changed(t, f"blk.{b}.indexer.q_proj.weight", narrow), "indexer.q_proj"),
    "A: no indexer": (lambda t, b, _: without(t, [f"blk.{b}.indexer.k_norm.weight"]), "indexer.k_norm"),
    "A: embedding of fewer tokens": (lambda t, _b, _m: changed(t, "token_embd.weight", narrow), "token_embd"),
    "A: fused attention": (
        lambda t, b, _: t | {f"blk.{b}.attn_qkv.weight": Stored((128, 384), "f32", bytes(4 * 128 * 384))},
        "attn_qkv",
    ),
    "B: and no mixer either": (lambda t, b, _: without(t, [*TABLES, *mixer(b)]), "hc_head_norm"),
    "C: mixer in part": (lambda t, b, m: without(layout_c(t, b, m), TRUNK_MIXER[1:2]), "hc_head"),
    "C: narrow mixer": (lambda t, b, m: changed(layout_c(t, b, m), TRUNK_MIXER[1], narrow), "output_hc_down"),
    "D: only the trunk's mixer, in part": (
        lambda t, b, m: without(t, mixer(b)) | {name: m[name] for name in TRUNK_MIXER[:2]},
        "hc_head",
    ),
    "E: one half": (
        lambda t, b, m: without(layout_e(t, b, m), [f"blk.{b}.nextn.fc_hidden.weight"]),
        "eh_proj",
    ),
    "E: narrow half": (
        lambda t, b, m: changed(layout_e(t, b, m), f"blk.{b}.nextn.fc_hidden.weight", narrow),
        "fc_hidden",
    ),
    "E: halves of two types": (
        lambda t, b, m: (
            layout_e(t, b, m) | {f"blk.{b}.nextn.fc_embd.weight": Stored((128, 128), "f16", bytes(2 * 128 * 128))}
        ),
        "type",
    ),
    "E: head without its list": (
        lambda t, b, m: without(layout_e(t, b, m, range(9)), ["d2t"]),
        "output.weight",
    ),
    "E: an id twice": (d2t([1, 2, 2]), "d2t"),
    "E: an id beyond the vocabulary": (d2t([1, 2, 288]), "d2t"),
    "E: a negative id": (d2t([-1, 2, 3]), "d2t"),
    "E: inverse list": (lambda t, _b, _m: t | {"t2d": draft_ids(range(288))}, "t2d"),
    "F: shared norm and no more": (
        lambda t, b, _: renamed(without(t, mixer(b)[1:]), {mixer(b)[0]: f"blk.{b}.nextn.shared_head_norm.weight"}),
        "hc_head",
    ),
    "F: shared norm beside a mixer": (
        lambda t, b, _: t | {f"blk.{b}.nextn.shared_head_norm.weight": t[mixer(b)[0]]},
        "shared_head_norm",
    ),
    "H: no block numbers": (
        lambda t, b, _: {name.replace(f"blk.{b}.", ""): tensor for name, tensor in t.items()},
        "no block number",
    ),
    "I: private head of other size": (
        lambda t, b, m: changed(layout_i(t, b, m), f"blk.{b}.nextn.shared_head_head.weight", narrow),
        "shared_head_head",
    ),
    "J: two other blocks": (
        lambda t, b, _: {
            name.replace(f"blk.{b}.", f"blk.{b + at}."): tensor for at in (1, 2) for name, tensor in t.items()
        },
        "no tensors for block",
    ),
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_miss_is_refused_with_its_tensor_and_never_ends_the_process(
    small: Pair, tmp_path: Path, case: str
) -> None:
    change, told = NEAR_MISSES[case]
    tensors = change(dict(small.head), small.block, small.model)
    path = save(tmp_path / "mtp-near.gguf", metadata_of(small.header), tensors)
    with pytest.raises(ModelFormatError, match=re.escape(told)):
        find_sidecar(small.path, path)
    if "without the one" in case:
        return  # loads and drafts in vain, which is why it is looked for
    with pytest.raises(LoadError):  # what llama-server would do with the file
        Model(ModelOptions(path=small.path, mtp_path=path))


def test_trunks_mixer_in_a_model_is_never_taken_for_the_blocks(small: Pair, tmp_path: Path) -> None:
    model = load(small.path)[0]
    block = without(layout_b(dict(small.head), small.block, small.model), mixer(small.block))
    path = save(tmp_path / "whole.gguf", metadata_of(model, small.header), small.model | block)
    assert "hc_head" in find_sidecar(path).reason
    with pytest.raises(LoadError):
        Model(ModelOptions(path=path, mtp_in_file=True))


def test_split_projection_leaves_no_file_behind(small: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    path = small.write(tmp_path / "mtp-head.gguf", "E")
    Model(ModelOptions(path=small.path, mtp_path=path)).close()
    assert list(place.iterdir()) == []
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    with pytest.raises(LoadError, match="temporary file"):
        Model(ModelOptions(path=small.path, mtp_path=path))


def test_halves_of_a_projection_are_its_columns(small: Pair) -> None:
    whole = small.head[f"blk.{small.block}.nextn.eh_proj.weight"]
    left, right = split_rows(whole)
    values, parts = whole.rows().view("<f4"), [half.rows().view("<f4") for half in (left, right)]
    assert np.array_equal(np.concatenate(parts, axis=1), values)
