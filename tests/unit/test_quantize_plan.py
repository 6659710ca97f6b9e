"""Which tensor gets which type."""

from __future__ import annotations

import pytest

from pylucebox._errors import InvalidArgumentError
from pylucebox._gguf_parse import TensorInfo
from pylucebox._quantize_plan import FILE_TYPES, Role, check_target, choose, role_of

N_TRUNK = 48


def tensor(name: str, shape: tuple[int, ...] = (2560, 2560), type_name: str = "bf16") -> TensorInfo:
    return TensorInfo(name, shape, type_name, 0, 0)


@pytest.mark.parametrize(
    ("name", "shape", "role"),
    [
        ("blk.0.attn_norm.weight", (2560,), Role.DECIDES),
        ("blk.1.ple_norm_key.weight", (2560, 4), Role.DECIDES),
        ("blk.1.ple_norm_query.weight", (2560, 4), Role.DECIDES),
        ("blk.1.ple_norm_conv.weight", (2560, 4), Role.DECIDES),
        ("blk.0.hc_attn_norm.weight", (10240,), Role.DECIDES),
        ("output_hc_norm.weight", (2560, 4), Role.DECIDES),
        ("blk.48.nextn.hnorm.weight", (2560, 4), Role.DECIDES),
        ("blk.48.nextn.hc_head_norm.weight", (10240,), Role.DECIDES),
        ("blk.3.indexer.k_norm.weight", (128,), Role.DECIDES),
        ("blk.3.indexer.q_proj.weight", (2560, 512), Role.DECIDES),
        ("blk.0.ffn_gate_inp.weight", (2560, 512), Role.DECIDES),
        ("blk.0.ffn_gate_inp_shexp.weight", (2560, 1), Role.DECIDES),
        ("blk.0.ssm_conv1d.weight", (4, 8192), Role.DECIDES),
        ("blk.0.ssm_a", (48,), Role.DECIDES),
        ("blk.0.ssm_dt.bias", (48,), Role.DECIDES),
        ("token_embd.weight", (2560, 248320), Role.TABLE),
        ("output.weight", (2560, 248320), Role.TABLE),
        ("per_layer_token_embd.weight", (320, 1000), Role.BULK),
        ("blk.0.ffn_down_exps.weight", (640, 2560, 512), Role.BULK),
        ("blk.0.attn_qkv.weight", (2560, 8192), Role.BULK),
        ("blk.3.attn_q.weight", (2560, 6144), Role.BULK),
        ("blk.3.attn_k.weight", (2560, 512), Role.STEERS),
        ("blk.0.ffn_up_shexp.weight", (2560, 640), Role.STEERS),
        ("blk.0.hc_ffn_inject.weight", (10240, 4), Role.STEERS),
        ("output_hc_down.weight", (10240, 320), Role.STEERS),
        ("blk.1.ple_conv1d.weight", (4, 10240), Role.STEERS),
        ("blk.48.nextn.eh_proj.weight", (5120, 2560), Role.DRAFTS),
        ("blk.48.ffn_down_exps.weight", (640, 2560, 512), Role.DRAFTS),
    ],
)
def test_role(name: str, shape: tuple[int, ...], role: Role) -> None:
    assert role_of(tensor(name, shape), N_TRUNK) is role


def test_in_an_mtp_file_of_its_own_the_block_is_what_becomes_smaller() -> None:
    assert role_of(tensor("blk.48.ffn_down_exps.weight", (640, 2560, 512)), None) is Role.BULK
    assert role_of(tensor("blk.48.nextn.eh_proj.weight", (5120, 2560)), None) is Role.STEERS


def test_numbers_that_are_no_weights_stay() -> None:
    choice = choose(tensor("nextn.draft_ids", (100,), "i64"), "q4_K", N_TRUNK)
    assert choice == ("i64", Role.OTHER, False)


@pytest.mark.parametrize("target", FILE_TYPES)
def test_what_decides_is_f32_and_nothing_gets_fewer_bits_than_the_bulk(target: str) -> None:
    assert choose(tensor("blk.1.ple_norm_key.weight", (2560, 4)), target, N_TRUNK).type_name == "f32"
    assert choose(tensor("blk.0.ffn_down_exps.weight", (2560, 8, 2)), target, N_TRUNK).type_name == target
    for name in ("output.weight", "blk.3.attn_v.weight", "blk.48.ffn_down_exps.weight"):
        chosen = choose(tensor(name), target, N_TRUNK).type_name
        assert chosen == target or chosen in ("q6_K", "q8_0")
    precise = target in ("f32", "f16", "bf16", "q8_0", "q6_K")
    assert choose(tensor("output.weight"), target, N_TRUNK).type_name == (target if precise else "q6_K")
    floats = target in ("f32", "f16", "bf16")
    assert choose(tensor("blk.48.attn_q.weight"), target, N_TRUNK).type_name == (target if floats else "q8_0")


@pytest.mark.parametrize(
    ("target", "row", "type_name"),
    [
        ("q4_K", 512, "q4_K"),
        ("q4_K", 320, "q5_0"),
        ("q5_K", 320, "q5_1"),
        ("q6_K", 640 + 32, "q8_0"),
        ("q2_K", 320, "iq4_nl"),
        ("iq4_xs", 320, "iq4_nl"),
        ("iq3_s", 320, "iq4_nl"),
        ("q8_0", 320, "q8_0"),
        ("q4_K", 40, "f16"),
        ("q8_0", 4, "f16"),
        ("bf16", 4, "bf16"),
    ],
)
def test_rows_that_do_not_fit_get_a_type_with_small_blocks(target: str, row: int, type_name: str) -> None:
    choice = choose(tensor("blk.0.attn_gate.weight", (row, 64)), target, N_TRUNK)
    assert (choice.type_name, choice.is_fallback) == (type_name, type_name != target)


@pytest.mark.parametrize(
    ("given", "name"), [("Q4_K", "q4_K"), ("q4_k", "q4_K"), ("IQ4_XS", "iq4_xs"), ("BF16", "bf16")]
)
def test_types_are_known_in_any_case(given: str, name: str) -> None:
    assert check_target(given) == name


@pytest.mark.parametrize("given", ["Q4_K_M", "iq2_xxs", "q9", ""])
def test_other_types_are_refused_with_those_that_are_known(given: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        check_target(given)
    assert (caught.value.argument, caught.value.value) == ("type_name", given)
    assert "q4_K" in caught.value.allowed
