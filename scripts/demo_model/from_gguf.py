"""Load GGUF files into the reference model: what the converter did to the checkpoint, undone.

So the reference runs on exactly the weights that a file holds, rounded as they are. It takes nothing but numbers from
the file: names, layout and arithmetic are those of `model.Qwen4Exp`.

As a command it compares files with the checkpoint they were made from. Those of ``convert.py --outtype f32`` must agree
but for the logarithm of the decay and for gains so close to 1 that the 1 swallows their last bits.

    python -m scripts.demo_model.from_gguf --checkpoint CHECKPOINT --trunk TRUNK --mtp MTP
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from pylucebox._gguf import read_file
from pylucebox.testing import read_f32

from .checkpoint import load_checkpoint
from .config import ModelConfig
from .model import Qwen4Exp

DEMO_MODEL = Path(__file__).resolve().parents[2] / "pylucebox" / "demo_model"
DEMO_TRUNK = DEMO_MODEL / "tiny-qwen4exp-Q8_0.gguf"
DEMO_MTP = DEMO_MODEL / "MTP" / "mtp-tiny-qwen4exp-Q8_0.gguf"

TABLE = "model.language_model.layers.{}.ple.ple_embedding.{}"
MIXERS = {
    "norm": "hc_norm",
    "down": "input_mix_weight_down",
    "up": "input_mix_weight_up",
    "inject": "block_inject_weight",
}
# name in a block of the GGUF file -> name in a layer of the checkpoint, both followed by ".weight"
PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "indexer.q_norm": "self_attn.indexer.q_layernorm",
    "indexer.k_norm": "self_attn.indexer.k_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ple_key": "ple.key_proj",
    "ple_value": "ple.value_proj",
    "ple_norm_key": "ple.norm_key",
    "ple_norm_query": "ple.norm_query",
    "ple_norm_conv": "ple.norm_conv",
    "ple_conv1d": "ple.conv1d",
    **{f"hc_attn_{part}": f"attn_hyper_connection.{name}" for part, name in MIXERS.items()},
    **{f"hc_ffn_{part}": f"mlp_hyper_connection.{name}" for part, name in MIXERS.items()},
}


def _grouped(values: Tensor, config: ModelConfig, dim: int = 0) -> Tensor:
    """Put value heads side by side that share a key head; the file has one of each key head in turn."""
    heads = (config.linear_num_value_heads // config.linear_num_key_heads, config.linear_num_key_heads)
    return values.unflatten(dim, (*heads, -1)).transpose(dim, dim + 1).flatten(dim, dim + 2)


def _delta_net(name: str, values: Tensor, config: ModelConfig) -> Tensor:
    """Undo the order of the value heads in a tensor of a gated delta net; `name` is the GGUF one."""
    if name in {"attn_qkv", "ssm_conv1d"}:
        n_keys = 2 * config.linear_num_key_heads * config.linear_key_head_dim
        return torch.cat((values[:n_keys], _grouped(values[n_keys:], config)))
    if name == "ssm_norm":
        return values
    return _grouped(values, config, 1 if name == "ssm_out" else 0)


def _layer(block: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Turn the tensors of one block, named without ``blk.N.``, into those of a layer."""
    out = {
        "mlp.experts.gate_up_proj": torch.cat((block.pop("ffn_gate_exps.weight"), block.pop("ffn_up_exps.weight")), 1),
        "mlp.experts.down_proj": block.pop("ffn_down_exps.weight"),
    }
    if "ssm_a" in block:
        # the file has the decay itself, the checkpoint its logarithm
        out["linear_attn.A_log"] = _grouped((-block.pop("ssm_a").double()).log().float(), config)
        out["linear_attn.dt_bias"] = _grouped(block.pop("ssm_dt.bias"), config)
    else:
        index = torch.cat((block.pop("indexer.q_proj.weight"), block.pop("indexer.k_proj.weight")))
        out["self_attn.indexer.index_qk_proj.weight"] = index
    for name, values in block.items():
        part = name.removesuffix(".weight")
        target = PARTS[part]
        if target.startswith("linear_attn."):
            values = _delta_net(part, values, config)  # noqa: PLW2901 - the same tensor, in the right order
        out[f"{target}.weight"] = values[:, None] if target.endswith("conv1d") else values
    return out


def checkpoint_state(trunk: dict[str, Tensor], mtp: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Name and lay out the tensors of two files as the checkpoint does.

    Parameters
    ----------
    trunk, mtp
        Tensors of the two GGUF files in float32, rows first.
    config
        Sizes of the model.

    Returns
    -------
    dict
        The state of `Qwen4Exp` but for the hash constants, which are metadata of the trunk's file.

    Raises
    ------
    ValueError
        If the sidecar's own embedding or head differs from the trunk's: the reference has one of each.
    """
    n_layers = config.num_hidden_layers
    named: dict[str, Tensor] = {
        "model.language_model.embed_tokens.weight": trunk["token_embd.weight"],
        "lm_head.weight": trunk["output.weight"],
        TABLE.format(config.ple_layer_ids[0] - 1, "ngram_embedding.weight"): trunk["per_layer_token_embd.weight"],
    }
    for name in ("token_embd.weight", "output.weight"):
        if not torch.equal(mtp.get(name, trunk[name]), trunk[name]):
            raise ValueError(f"{name} of the MTP file is not the trunk's")
    both = trunk | mtp
    eh_proj = both[f"blk.{n_layers}.nextn.eh_proj.weight"]
    named["mtp.fc_embedding.weight"], named["mtp.fc_hidden.weight"] = eh_proj.split(config.hidden_size, 1)
    named["mtp.pre_fc_norm_embedding.weight"] = both[f"blk.{n_layers}.nextn.enorm.weight"]
    named["mtp.pre_fc_norm_hidden.weight"] = both[f"blk.{n_layers}.nextn.hnorm.weight"]
    heads = {"output_hc": "model.language_model", f"blk.{n_layers}.nextn.hc_head": "mtp"}
    for part, name in MIXERS.items():
        for head, owner in heads.items():
            if part != "inject":
                named[f"{owner}.hyper_connection_mixer.{name}.weight"] = both[f"{head}_{part}.weight"]
    for layer in range(n_layers + 1):
        start = f"blk.{layer}."
        block = {
            name.removeprefix(start): values
            for name, values in both.items()
            if name.startswith(start) and ".nextn." not in name
        }
        owner = "mtp.layers.0" if layer == n_layers else f"model.language_model.layers.{layer}"
        named |= {f"{owner}.{name}": values for name, values in _layer(block, config).items()}
    # gains are stored less 1 in the checkpoint, except that of the delta net's gated norm
    return {
        name: values - 1 if "norm" in name and not name.endswith("linear_attn.norm.weight") else values
        for name, values in named.items()
    }


def load_gguf(trunk: Path = DEMO_TRUNK, mtp: Path = DEMO_MTP) -> Qwen4Exp:
    """Load a pair of GGUF files into the reference model.

    Parameters
    ----------
    trunk, mtp
        The files, by default those of the built-in model.

    Returns
    -------
    Qwen4Exp
        The model in float32, in evaluation mode.

    Raises
    ------
    RuntimeError
        If tensors are missing, left over, or of other sizes than the demo model's.
    ValueError
        If the files do not belong to the reference model.
    """
    config = ModelConfig()
    tensors = [{name: torch.from_numpy(array) for name, array in read_f32(path).items()} for path in (trunk, mtp)]
    state = checkpoint_state(*tensors, config)
    metadata = read_file(trunk).metadata
    for name, key in (
        ("layer_multipliers", "layer_multipliers"),
        ("ngram_heads_offsets", "head_offsets"),
        ("ngram_heads_vocab_sizes", "head_vocab_sizes"),
    ):
        constants = torch.tensor(metadata[f"qwen4exp.ple.{key}"], dtype=torch.long)
        state[TABLE.format(config.ple_layer_ids[0] - 1, name)] = constants
    model = Qwen4Exp(config)
    model.load_state_dict(state)
    return model.eval()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder written by export.py")
    parser.add_argument("--trunk", type=Path, default=DEMO_TRUNK, help="GGUF file (default: the built-in model's)")
    parser.add_argument("--mtp", type=Path, default=DEMO_MTP, help="its sidecar (default: the built-in model's)")
    args = parser.parse_args()
    expected = load_checkpoint(args.checkpoint).state_dict()
    found = load_gguf(args.trunk, args.mtp).state_dict()
    differences = {
        name: (found[name] - tensor).abs().max().item()
        for name, tensor in expected.items()
        if not torch.equal(found[name], tensor)
    }
    for name, difference in differences.items():
        print(f"{name}: off by {difference:.2g} at most")
    print(f"{len(expected) - len(differences)} of {len(expected)} tensors are equal, bit by bit")


if __name__ == "__main__":
    main()
