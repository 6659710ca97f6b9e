"""Write the MTP block of a small model as Hugging Face's libraries would: safetensors shards and their index."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Tensors = dict[str, Array]


def checkpoint_tensors(sidecar: Mapping[str, Array], *, prefix: str = "mtp.", each_expert: bool = False) -> Tensors:
    """Turn the tensors of an MTP file, rows first, into those of a checkpoint."""
    block = next(name for name in sidecar if ".nextn." in name).split(".nextn.")[0]
    ours = {name.removeprefix(f"{block}.").removesuffix(".weight"): values for name, values in sidecar.items()}
    norms = {
        "pre_fc_norm_embedding": "nextn.enorm",
        "pre_fc_norm_hidden": "nextn.hnorm",
        "hyper_connection_mixer.hc_norm": "nextn.hc_head_norm",
        "layers.0.attn_hyper_connection.hc_norm": "hc_attn_norm",
        "layers.0.mlp_hyper_connection.hc_norm": "hc_ffn_norm",
        "layers.0.self_attn.q_norm": "attn_q_norm",
        "layers.0.self_attn.k_norm": "attn_k_norm",
        "layers.0.self_attn.indexer.q_layernorm": "indexer.q_norm",
        "layers.0.self_attn.indexer.k_layernorm": "indexer.k_norm",
    }
    matrices = {
        "layers.0.self_attn.q_proj": "attn_q",
        "layers.0.self_attn.k_proj": "attn_k",
        "layers.0.self_attn.v_proj": "attn_v",
        "layers.0.self_attn.o_proj": "attn_output",
        "layers.0.mlp.gate": "ffn_gate_inp",
        "layers.0.mlp.shared_expert.gate_proj": "ffn_gate_shexp",
        "layers.0.mlp.shared_expert.up_proj": "ffn_up_shexp",
        "layers.0.mlp.shared_expert.down_proj": "ffn_down_shexp",
    }
    for place, name in (
        ("hyper_connection_mixer", "nextn.hc_head"),
        ("layers.0.attn_hyper_connection", "hc_attn"),
        ("layers.0.mlp_hyper_connection", "hc_ffn"),
    ):
        matrices |= {f"{place}.input_mix_weight_{part}": f"{name}_{part}" for part in ("down", "up")}
        if f"{name}_inject" in ours:
            matrices[f"{place}.block_inject_weight"] = f"{name}_inject"

    projection = ours["nextn.eh_proj"]
    width = projection.shape[1] // 2
    experts = "layers.0.mlp.experts"
    found = {f"{name}.weight": ours[theirs] - np.float32(1) for name, theirs in norms.items()}
    found |= {f"{name}.weight": ours[theirs] for name, theirs in matrices.items()}
    found |= {
        "fc_embedding.weight": projection[:, :width],
        "fc_hidden.weight": projection[:, width:],
        "layers.0.mlp.shared_expert_gate.weight": ours["ffn_gate_inp_shexp"].reshape(1, -1),
        "layers.0.self_attn.indexer.index_qk_proj.weight": np.concatenate(
            [ours["indexer.q_proj"], ours["indexer.k_proj"]]
        ),
    }
    parts = {name: ours[f"ffn_{name}_exps"] for name in ("gate", "up", "down")}
    if each_expert:
        for name, values in parts.items():
            found |= {f"{experts}.{number}.{name}_proj.weight": expert for number, expert in enumerate(values)}
    else:
        found[f"{experts}.gate_up_proj"] = np.concatenate([parts["gate"], parts["up"]], axis=1)
        found[f"{experts}.down_proj"] = parts["down"]
    tables = {"model.language_model.embed_tokens.weight": ours["token_embd"], "lm_head.weight": ours["output"]}
    return tables | {f"{prefix}{name}": values for name, values in found.items()}


def write_checkpoint(folder: Path, tensors: Tensors, *, n_shards: int = 2) -> Path:
    """Write float32 shards; a further shard, without wanted tensors, is in the index and not there."""
    folder.mkdir(parents=True, exist_ok=True)
    weight_map = {"model.language_model.layers.0.mlp.gate.weight": "model-missing.safetensors"}
    names = list(tensors)
    for shard in range(n_shards):
        file = f"model-{shard + 1:05}-of-{n_shards + 1:05}.safetensors"
        header, data = {}, b""
        for name in names[shard::n_shards]:
            raw = np.ascontiguousarray(tensors[name], "<f4").tobytes()
            place = [len(data), len(data) + len(raw)]
            header[name] = {"dtype": "F32", "shape": list(tensors[name].shape), "data_offsets": place}
            data += raw
            weight_map[name] = file
        text = json.dumps(header).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder
