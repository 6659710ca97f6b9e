"""The writer of small models: the files are well formed, hold what the spec says, and mean what they are meant to."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from pylucebox._errors import InvalidArgumentError
from pylucebox._gguf import ArraySpan, GgufFile, read_file
from pylucebox._mtp_layout import MtpLayout
from pylucebox._sidecar import find_sidecar
from pylucebox.testing import END_RUN, K_QUANT_SPEC, TinySpec, write_tiny_model
from pylucebox.testing._gguf_writer import MetaValue, Tensor, encode, write_gguf
from pylucebox.testing._language import Language, make_language
from pylucebox.testing._vocab import byte_vocabulary
from pylucebox.testing._weights import WeightMaker

VOCAB = byte_vocabulary(32)


def language() -> Language:
    return make_language(VOCAB, np.random.default_rng(0))


def tensor_data(file: GgufFile, name: str) -> bytes:
    """Read a tensor's bytes; the data section is the last thing in a file."""
    end = max(info.offset + info.n_bytes + -info.n_bytes % 32 for info in file.tensors.values())
    start = file.file_bytes - end + file.tensors[name].offset
    assert start % 32 == 0
    return file.path.read_bytes()[start : start + file.tensors[name].n_bytes]


# ---- GGUF


def test_metadata_comes_back_with_the_type_it_was_given(tmp_path: Path) -> None:
    values = {
        "a": True,
        "b": 7,
        "c": 0.5,
        "d": "text é",
        "e": np.uint64(1 << 45),
        "f": np.asarray([-1, 2], np.int32),
        "g": np.asarray([1 << 40], np.uint64),
    }
    write_gguf(tmp_path / "x.gguf", values, [])
    found = read_file(tmp_path / "x.gguf").metadata
    assert dict(found) == {**values, "e": 1 << 45, "f": (-1, 2), "g": (1 << 40,)}
    assert isinstance(found["a"], bool)


def test_string_arrays_may_be_empty(tmp_path: Path) -> None:
    write_gguf(tmp_path / "x.gguf", {"none": (), "some": ["a", ""], "after": 1}, [])
    found = read_file(tmp_path / "x.gguf").metadata
    lengths = [span.length for span in found.values() if isinstance(span, ArraySpan)]
    assert (lengths, found["after"]) == ([0, 2], 1)


def test_tensors_come_back_whatever_their_sizes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.standard_normal(shape, np.float32) for name, shape in {"a": (3,), "b": (5, 2), "c": (2, 3, 4)}.items()
    }
    tensors = [Tensor(name, array.shape, "f32", encode(array, "f32")) for name, array in arrays.items()]
    write_gguf(tmp_path / "x.gguf", {"k": "odd"}, tensors)
    file = read_file(tmp_path / "x.gguf")
    for name, array in arrays.items():
        assert file.tensors[name].shape == array.shape[::-1]
        assert tensor_data(file, name) == array.tobytes()


@pytest.mark.parametrize("value", [-1, 1 << 32, np.zeros((2, 2)), np.complex64(1)])
def test_metadata_that_gguf_cannot_hold_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match="key"):
        write_gguf(tmp_path / "x.gguf", {"key": value}, [])  # type: ignore[dict-item]
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.parametrize("tensors", [[Tensor("a", (4,), "f32", bytes(12))], [Tensor("a", (1,), "f32", bytes(4))] * 2])
def test_tensors_that_would_make_a_broken_file_are_refused(tmp_path: Path, tensors: list[Tensor]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        write_gguf(tmp_path / "x.gguf", {}, tensors)
    assert caught.value.argument == "tensors"
    assert not (tmp_path / "x.gguf").exists()


# ---- tensor types


def test_q8_0_block_is_scale_and_rounded_levels() -> None:
    row = np.zeros((1, 64), np.float32)
    row[0, :4] = [127, -63.5, 0.5, 0.25]
    data = encode(row, "q8_0")
    assert np.frombuffer(data[:2], "<f2")[0] == 1
    assert np.frombuffer(data[2:34], np.int8)[:5].tolist() == [127, -64, 1, 0, 0]
    assert data[34:] == bytes(34)  # a block of zeros does not divide by its scale


def test_q8_0_stays_within_half_a_level() -> None:
    rows = np.random.default_rng(0).standard_normal((20, 96), np.float32)
    blocks = np.frombuffer(encode(rows, "q8_0"), np.dtype([("scale", "<f2"), ("level", np.int8, 32)]))
    scale = blocks["scale"].astype(np.float32)[:, None]
    error = np.abs(scale * blocks["level"] - rows.reshape(-1, 32))
    assert (error <= scale * 0.5 + np.abs(rows.reshape(-1, 32)) * 2**-10).all()


def test_bf16_rounds_to_nearest_even() -> None:
    bits = np.asarray([[0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF]], np.uint32)
    assert np.frombuffer(encode(bits.view(np.float32), "bf16"), "<u2").tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80]


def test_other_types_go_through_the_given_quantiser(tmp_path: Path) -> None:
    seen: dict[str, set[tuple[int, ...]]] = defaultdict(set)

    def quantize(type_name: str, rows: np.ndarray) -> bytes:
        assert rows.dtype == np.float32
        seen[type_name].add(rows.shape)
        return bytes(rows.size // 256 * 144)

    files = write_tiny_model(
        tmp_path / "x.gguf", dataclasses.replace(K_QUANT_SPEC, weight_type="q4_K"), quantize=quantize
    )
    stored = {name: info.type_name for name, info in read_file(files.model).tensors.items()}
    assert list(seen) == ["q4_K"]
    assert (4 * 256, 256) in seen["q4_K"]  # experts come as rows too
    assert stored["blk.0.ffn_down_exps.weight"] == stored["output.weight"] == "q4_K"


def test_only_tables_and_taps_of_the_wide_spec_do_not_take_k_quants(tmp_path: Path) -> None:
    spec = dataclasses.replace(K_QUANT_SPEC, weight_type="q6_K")
    files = write_tiny_model(tmp_path / "x.gguf", spec, quantize=lambda _, rows: bytes(rows.size // 256 * 210))
    tensors = read_file(files.model).tensors.values()
    assert {info.name for info in tensors if info.type_name == "f16"} == {
        "per_layer_token_embd.weight",
        "blk.1.ple_conv1d.weight",
    }


def test_quantiser_that_returns_too_few_bytes_is_refused() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        encode(np.zeros((2, 256), np.float32), "q4_K", lambda *_: b"short")
    assert caught.value.argument == "quantize"


@pytest.mark.parametrize(("type_name", "row", "argument"), [("q9_9", 256, "type_name"), ("q8_0", 48, "values")])
def test_types_that_do_not_exist_or_fit_are_refused(type_name: str, row: int, argument: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        encode(np.zeros((1, row), np.float32), type_name)
    assert caught.value.argument == argument


def test_tensors_that_the_converter_keeps_in_f32_stay_f32(tmp_path: Path) -> None:
    files = write_tiny_model(tmp_path / "x.gguf", TinySpec(weight_type="q8_0"))
    stored = {name: info.type_name for name, info in read_file(files.model).tensors.items()}
    for name in ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight", "ssm_a", "ssm_dt.bias"):
        assert stored[f"blk.0.{name}"] == "f32"
    assert {kind for name, kind in stored.items() if name.endswith("_norm.weight")} == {"f32"}
    assert stored["blk.0.attn_qkv.weight"] == stored["blk.4.nextn.eh_proj.weight"] == "q8_0"
    assert stored["blk.1.ple_conv1d.weight"] == "f16"  # rows of 4


# ---- files


def test_equal_specs_give_equal_files_and_seeds_differ(tmp_path: Path) -> None:
    data = [
        write_tiny_model(tmp_path / f"{index}.gguf", TinySpec(seed=seed)).model.read_bytes()
        for index, seed in enumerate((3, 3, 4))
    ]
    assert data[0] == data[1]
    assert data[0] != data[2]


@pytest.mark.parametrize("kind", ["mixed", "agree", "random"])
@pytest.mark.parametrize(
    ("mtp", "layout", "borrows"),
    [
        ("in-file", MtpLayout.IN_FILE, False),
        ("sidecar", MtpLayout.SELF_CONTAINED, False),
        ("shared", MtpLayout.BORROWED_TABLES, True),
    ],
)
def test_draft_block_is_found_where_the_spec_puts_it(
    tmp_path: Path, kind: str, mtp: str, layout: MtpLayout, borrows: bool
) -> None:
    files = write_tiny_model(tmp_path / "tiny.gguf", TinySpec(kind=kind, mtp=mtp))  # type: ignore[arg-type]
    verdict = find_sidecar(files.model)
    assert verdict.accepted, verdict.reason
    assert (verdict.layout, verdict.borrows_embedding, verdict.borrows_head) == (layout, borrows, borrows)
    assert verdict.path == (files.sidecar or files.model)
    if files.sidecar:
        assert files.sidecar == tmp_path / "MTP" / "mtp-tiny.gguf"


def test_model_without_draft_block_says_nothing_of_one(tmp_path: Path) -> None:
    file = read_file(write_tiny_model(tmp_path / "x.gguf", TinySpec(mtp="none")).model)
    assert not [name for name in (*file.tensors, *file.metadata) if "nextn" in name or name.startswith("blk.4.")]
    assert file.metadata["qwen4exp.block_count"] == 4


def test_shared_sidecar_is_marked_and_has_the_block_alone(tmp_path: Path) -> None:
    files = write_tiny_model(tmp_path / "x.gguf", TinySpec(mtp="shared"))
    assert files.sidecar is not None
    file = read_file(files.sidecar)
    assert file.metadata["qwen4exp.nextn_shared_target_tensors"] is True
    assert len(file.tensors) == 32  # the count of the published files of this layout
    assert all(name.startswith("blk.4.") for name in file.tensors)
    assert not [key for key in file.metadata if ".ple." in key]


def test_trunk_is_the_same_wherever_the_draft_block_is(tmp_path: Path) -> None:
    inside, beside = (write_tiny_model(tmp_path / f"{mtp}.gguf", TinySpec(mtp=mtp)) for mtp in ("in-file", "sidecar"))
    assert beside.sidecar is not None
    whole, trunk, block = read_file(inside.model), read_file(beside.model), read_file(beside.sidecar)
    for part in (trunk, block):
        for name in part.tensors:
            assert tensor_data(part, name) == tensor_data(whole, name)
    assert {*trunk.tensors, *block.tensors} == {*whole.tensors}


def test_full_attention_layers_and_only_they_have_a_compress_ratio(tmp_path: Path) -> None:
    spec = TinySpec(n_layer=8, compress_ratio=8)
    file = read_file(write_tiny_model(tmp_path / "x.gguf", spec).model)
    assert file.metadata["qwen4exp.attention.compress_ratios"] == (0, 0, 0, 8, 0, 0, 0, 8, 8)
    assert {n for n in range(9) if f"blk.{n}.indexer.k_proj.weight" in file.tensors} == {3, 7, 8}


def test_ngram_table_has_the_rows_that_its_heads_index(tmp_path: Path) -> None:
    file = read_file(write_tiny_model(tmp_path / "x.gguf", TinySpec(ple_rows_per_head=31)).model)
    offsets, sizes = (file.metadata[f"qwen4exp.ple.{key}"] for key in ("head_offsets", "head_vocab_sizes"))
    assert sizes == (31, 33, 35, 37)
    assert offsets == (0, 31, 64, 99)
    assert file.tensors["per_layer_token_embd.weight"].shape == (32, 136)


def test_model_can_do_without_ngram_embedding(tmp_path: Path) -> None:
    file = read_file(write_tiny_model(tmp_path / "x.gguf", TinySpec(ple_layer=None)).model)
    assert not [name for name in (*file.tensors, *file.metadata) if "ple" in name or "per_layer" in name]


def test_extra_metadata_goes_into_every_file(tmp_path: Path) -> None:
    extra: dict[str, MetaValue] = {"qwen4exp.nextn_hidden_norm_groups": 4, "general.name": "other"}
    files = write_tiny_model(tmp_path / "x.gguf", TinySpec(mtp="sidecar"), extra_metadata=extra)
    assert files.sidecar is not None
    for path in (files.model, files.sidecar):
        assert extra.items() <= read_file(path).metadata.items()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("seed", -1),
        ("kind", "other"),
        ("mtp", "elsewhere"),
        ("n_embd", 100),
        ("hc_count", 1),
        ("n_head", 3),
        ("n_rot", 32),
        ("compress_ratio", 1),
        ("indexer_top_k", 30),
        ("ssm_dt_rank", 3),
        ("n_expert_used", 9),
        ("n_head_kv", 0),
        ("weight_type", "q9_9"),
        ("n_layer", 3),
        ("full_attention_interval", 1),
        ("ple_layer", 3),
        ("ple_ngram_size", 1),
        ("ple_heads_per_ngram", 3),
    ],
)
def test_specs_that_would_not_load_are_refused(argument: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        TinySpec(**{"n_head_kv": 2, argument: value} if argument == "n_head" else {argument: value})  # type: ignore[arg-type]
    assert caught.value.argument == argument


# ---- vocabulary and language


def test_every_byte_is_one_token_with_its_own_id() -> None:
    # GPT-2's spelling, by its two known ends and by being reversible
    assert VOCAB.tokens[ord(" ")] == "Ġ"
    assert VOCAB.tokens[ord("\n")] == "Ċ"
    assert [VOCAB.tokens[byte] for byte in b"aZ~"] == ["a", "Z", "~"]
    assert len(set(VOCAB.tokens)) == len(VOCAB.tokens) == len(VOCAB.types)
    assert all(len(token) == 1 for token in VOCAB.tokens[:256])


@pytest.mark.parametrize("multiple", [1, 32, 100])
def test_vocabulary_is_filled_up_to_the_multiple(multiple: int) -> None:
    vocab = byte_vocabulary(multiple)
    assert len(vocab.tokens) % multiple == 0
    assert {*vocab.tokens} >= {"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"}


def test_end_run_counts_down_to_the_end_token_and_nothing_else_leads_there() -> None:
    links = language()
    after = dict(links.forced)
    run = [*END_RUN.encode(), VOCAB.id_of("<|im_end|>")]
    assert [after[token] for token in run[:-1]] == run[1:]
    assert not {*run} & {successor for _, successor in (*links.near, *links.far)}


def test_free_text_is_valid_utf8_and_repeats_no_character_soon() -> None:
    links = language()
    near, far, forced = dict(links.near), dict(links.far), dict(links.forced)
    rng = random.Random(0)
    token, text = ord("a"), bytearray()
    for _ in range(3000):
        text.append(token)
        token = forced.get(token) or rng.choice((near, far))[token]
    characters = text.decode(errors="strict" if token not in range(0x80, 0xC0) else "ignore")
    assert {"a", "\n", "é", "€", "😀"} <= {*characters}
    last: dict[str, int] = {}
    for place, character in enumerate(characters):
        assert place - last.get(character, -100) >= 20
        last[character] = place


# ---- weights


@pytest.mark.parametrize("spec", [TinySpec(kind="mixed"), TinySpec(kind="mixed", seed=5, n_embd=256)])
def test_head_reads_both_likely_successors_from_the_code_of_a_token(spec: TinySpec) -> None:
    maker = WeightMaker(spec, VOCAB)
    trunk = maker.trunk()
    # a stream with no history, as it leaves a mixer whose gates stand at one half
    logits = trunk["token_embd.weight"] @ trunk["output.weight"].T
    links = maker.language
    far = dict(links.far)
    hits = [{near, far[token]} == {*np.argsort(logits[token])[-2:].tolist()} for token, near in links.near]
    assert np.mean(hits) > 0.9
    assert all(logits[token].argmax() == successor for token, successor in links.forced)


def test_only_history_channels_are_written_by_blocks() -> None:
    spec = TinySpec()
    trunk = WeightMaker(spec, VOCAB).trunk()
    used = (trunk["token_embd.weight"] != 0).any(axis=0)
    writers = (
        "attn_output.weight",
        "ssm_out.weight",
        "ffn_down_exps.weight",
        "ffn_down_shexp.weight",
        "ple_value.weight",
    )
    found = [array for name, array in trunk.items() if name.endswith(writers)]
    assert len(found) == 4 + 2 * 4 + 1
    for array in found:
        written = (array != 0).any(axis=-1).reshape(-1, spec.n_embd).any(axis=0)
        assert not (written & used).any()
        assert written.any()


def test_draft_block_takes_code_from_the_token_and_history_from_the_trunk() -> None:
    spec = TinySpec()
    maker = WeightMaker(spec, VOCAB)
    used = (maker.trunk()["token_embd.weight"] != 0).any(axis=0)
    project = maker.draft_block()["blk.4.nextn.eh_proj.weight"]
    assert (np.diag(project[:, : spec.n_embd]) != 0).tolist() == used.tolist()
    assert (np.diag(project[:, spec.n_embd :]) != 0).tolist() == (~used).tolist()
    assert np.count_nonzero(project) == spec.n_embd
