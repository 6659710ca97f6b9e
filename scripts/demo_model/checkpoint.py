"""Checkpoints: from training weights to the real model's layout, and back into the reference model."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .config import END_OF_TEXT, IM_END, ModelConfig, hf_config
from .model import Qwen4Exp

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "vocab.json", "merges.txt")
TABLE = "ngram_embedding"


def load_tensors(paths: Iterable[Path]) -> dict[str, Tensor]:
    """Read safetensors files into one dictionary."""
    tensors: dict[str, Tensor] = {}
    for path in paths:
        tensors |= load_file(path)
    return tensors


def checkpoint_tensors(state: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Turn a model's state into checkpoint tensors.

    Parameters
    ----------
    state
        ``Qwen4Exp.state_dict()``.
    config
        Sizes of the model.

    Returns
    -------
    dict
        The weights as bfloat16, the n-gram table cut into shards; hash constants stay int64.
    """
    out = {}
    for name, tensor in state.items():
        if tensor.dtype == torch.int64:
            out[name] = tensor.contiguous()
        elif name.endswith(f"{TABLE}.weight"):
            parts = tensor.to(torch.bfloat16).split(-(-tensor.shape[0] // config.split_ngram_parts))
            for i, part in enumerate(parts):
                out[name.replace(f"{TABLE}.weight", f"{TABLE}.shard_{i}.weight")] = part.contiguous()
        else:
            out[name] = tensor.to(torch.bfloat16).contiguous()
    return out


def write_checkpoint(out: Path, tensors: dict[str, Tensor], config: ModelConfig, tokenizer: Path, n_files: int) -> int:
    """Write a checkpoint folder.

    Parameters
    ----------
    out
        Folder to write.
    tensors
        What `checkpoint_tensors` returned.
    config
        Sizes of the model.
    tokenizer
        Folder written by ``make_corpus.py``.
    n_files
        Safetensors files, of about equal size.

    Returns
    -------
    int
        Bytes of all tensors.
    """
    out.mkdir(parents=True, exist_ok=True)
    generation = {
        "bos_token_id": None,
        "eos_token_id": [IM_END, END_OF_TEXT],
        "pad_token_id": END_OF_TEXT,
        "do_sample": False,
        "transformers_version": "5.24.0",
    }
    for name, value in (("config.json", hf_config(config)), ("generation_config.json", generation)):
        (out / name).write_text(json.dumps(value, indent=2), encoding="utf-8")
    for name in TOKENIZER_FILES:
        shutil.copy(tokenizer / name, out / name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    groups: list[dict[str, Tensor]] = [{}]
    size = 0
    for name in sorted(tensors):
        n_bytes = tensors[name].nbytes
        if groups[-1] and len(groups) < n_files and size + n_bytes > total / n_files + 1:
            groups.append({})
            size = 0
        groups[-1][name] = tensors[name]
        size += n_bytes
    weight_map = {}
    for i, group in enumerate(groups, 1):
        file_name = f"model-{i:05d}-of-{len(groups):05d}.safetensors"
        save_file(group, out / file_name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(group, file_name)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    return total


def load_checkpoint(path: Path, config: ModelConfig | None = None) -> Qwen4Exp:
    """Load a checkpoint folder into the reference model.

    Parameters
    ----------
    path
        Checkpoint folder.
    config
        Sizes of the model, by default those of the demo model.

    Returns
    -------
    Qwen4Exp
        The model in float32, its bfloat16 weights widened, in evaluation mode.
    """
    config = config or ModelConfig()
    index = json.loads((path / "model.safetensors.index.json").read_text(encoding="utf-8"))["weight_map"]
    tensors = load_tensors(path / name for name in sorted(set(index.values())))
    shards = [name for name in tensors if f"{TABLE}.shard_" in name]
    shards.sort(key=lambda name: int(name.split(".shard_")[1].split(".")[0]))
    tensors[shards[0].split(".shard_")[0] + ".weight"] = torch.cat([tensors.pop(name) for name in shards])
    model = Qwen4Exp(config)
    model.load_state_dict({name: t if t.dtype == torch.int64 else t.float() for name, t in tensors.items()})
    return model.eval()
