"""Convert the demo checkpoint into the two GGUF files of the built-in model.

The vendor tree's own converter does the work. This script adds what only the demo model needs:

* the pre-tokenizer is named, because the converter recognises published tokenizers by a hash and refuses others;
* ``config.json`` is read as it is, so the result does not depend on the transformers version;
* the projections of the sparse-attention indexer stay F32 in a Q8_0 file, as ``llama-quantize`` leaves them: they
  decide which blocks are attended to, and they are small;
* the files are read back and checked before the script reports success.

Needs torch, transformers, safetensors and what the converter itself imports.

    python scripts/demo_model/convert.py --checkpoint DIR
"""

import argparse
import importlib
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
PRE_TOKENIZER = "qwen35"
LICENSE = "mit"
OUTTYPES = {"q8_0": ("MOSTLY_Q8_0", "Q8_0"), "bf16": ("MOSTLY_BF16", "BF16"), "f32": ("ALL_F32", "F32")}
DESCRIPTIONS = {
    "trunk": "A 15 M parameter model of arch qwen4exp, trained from nothing as the built-in demo model of pylucebox.",
    "mtp": "The multi-token prediction block of tiny-qwen4exp, a sidecar for speculative decoding.",
}


def load_converter(llama_cpp: Path) -> tuple[Any, Any]:
    """Import the converter of a llama.cpp tree.

    Parameters
    ----------
    llama_cpp
        Root of the tree, the folder that holds ``conversion/`` and ``gguf-py/``.

    Returns
    -------
    tuple
        The ``gguf`` module and the class ``Qwen4ExpTextModel``.

    Raises
    ------
    SystemExit
        If the tree has no converter for qwen4exp.
    """
    if not (llama_cpp / "conversion" / "qwen4exp.py").is_file():
        raise SystemExit(f"no qwen4exp converter under {llama_cpp}: name a llama.cpp tree with --llama-cpp")
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]
    return importlib.import_module("gguf"), importlib.import_module("conversion.qwen4exp").Qwen4ExpTextModel


def demo_class(gguf: Any, base: Any, part: str) -> Any:
    """Subclass the converter's model class for one of the two files.

    Parameters
    ----------
    gguf, base
        What `load_converter` returned.
    part
        ``"trunk"`` or ``"mtp"``.

    Returns
    -------
    type
        A class to be used like the converter's own.
    """

    class DemoModel(base):
        model_arch = base.model_arch
        no_mtp = part == "trunk"
        mtp_only = part == "mtp"

        def get_vocab_base_pre(self, _tokenizer: Any) -> str:
            return PRE_TOKENIZER

        def tensor_force_quant(self, name: str, new_name: str, bid: int | None, n_dims: int) -> Any:
            if ".indexer." in new_name:
                return gguf.GGMLQuantizationType.F32
            return super().tensor_force_quant(name, new_name, bid, n_dims)

        def set_type(self) -> None:
            # the converter takes a licence only from a model card, and this checkpoint has none
            self.metadata.license = LICENSE
            super().set_type()

    return DemoModel


def write_file(gguf: Any, base: Any, part: str, *, checkpoint: Path, outtype: str, path: Path) -> None:
    """Write one GGUF file.

    Parameters
    ----------
    gguf, base
        What `load_converter` returned.
    part
        ``"trunk"`` or ``"mtp"``.
    checkpoint
        Checkpoint folder in the Hugging Face layout.
    outtype
        A key of `OUTTYPES`.
    path
        The file to write; its folder is made.
    """
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    name = "tiny-qwen4exp" + (" MTP" if part == "mtp" else "")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        metadata = Path(scratch) / "metadata.json"
        metadata.write_text(
            json.dumps(
                {
                    "general.name": name,
                    "general.author": "pylucebox contributors",
                    "general.description": DESCRIPTIONS[part],
                }
            ),
            encoding="utf-8",
        )
        file_type = getattr(gguf.LlamaFileType, OUTTYPES[outtype][0])
        demo_class(gguf, base, part)(checkpoint, file_type, path, metadata_override=metadata, hparams=config).write()


def check_file(gguf: Any, part: str, checkpoint: Path, path: Path) -> str:
    """Read a written file back and compare what is easy to get wrong with the checkpoint's configuration.

    Parameters
    ----------
    gguf
        The ``gguf`` module.
    part
        ``"trunk"`` or ``"mtp"``.
    checkpoint
        Checkpoint folder the file was made from.
    path
        The written file.

    Returns
    -------
    str
        One line that says what the file holds.

    Raises
    ------
    SystemExit
        If a value differs from what the loader needs.
    """
    text = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["text_config"]
    n_mtp = text["mtp_num_hidden_layers"] if part == "mtp" else 0
    ratio = text["indexer_compress_ratio"]
    reader = gguf.GGUFReader(path)
    found = {key: field.contents() for key, field in reader.fields.items()}
    wanted = {
        "qwen4exp.block_count": text["num_hidden_layers"] + n_mtp,
        "qwen4exp.nextn_predict_layers": n_mtp or None,
        "qwen4exp.attention.compress_ratios": [
            0 if layer == "linear_attention" else ratio for layer in text["layer_types"]
        ]
        + [ratio] * n_mtp,
        "qwen4exp.ple.layers": None if part == "mtp" else [layer - 1 for layer in text["ple_layer_ids"]],
        "qwen4exp.ple.eos_token_id": None if part == "mtp" else text["eos_token_id"],
        "tokenizer.ggml.pre": PRE_TOKENIZER,
        "tokenizer.chat_template": (checkpoint / "chat_template.jinja").read_text(encoding="utf-8"),
    }
    wrong = [f"{key}: {found.get(key)!r}, wanted {value!r}" for key, value in wanted.items() if found.get(key) != value]
    # a gamma stored without the 1 of (1 + w) has a mean near 0; the smallest true mean of this model is 0.44
    wrong += [
        f"{tensor.name}: mean {tensor.data.mean():.3f}, wanted near 1"
        for tensor in reader.tensors
        if "norm" in tensor.name and not 0.4 < tensor.data.mean() < 2.5
    ]
    if wrong:
        raise SystemExit(f"{path} is not what the loader needs:\n  " + "\n  ".join(wrong))
    types = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    return f"{path}: {path.stat().st_size / 1e6:.2f} MB, {len(reader.tensors)} tensors ({dict(types)}), checked"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder written by export.py")
    parser.add_argument(
        "--llama-cpp",
        type=Path,
        default=REPOSITORY / "vendor" / "llama.cpp",
        help="llama.cpp tree with the converter (default: vendor/llama.cpp)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=REPOSITORY / "pylucebox" / "demo_model",
        help="folder of the trunk; the sidecar goes to MTP/ below it (default: pylucebox/demo_model)",
    )
    parser.add_argument(
        "--outtype", choices=sorted(OUTTYPES), default="q8_0", help="type of the large tensors (default: q8_0)"
    )
    args = parser.parse_args()
    gguf, base = load_converter(args.llama_cpp.resolve())
    label = OUTTYPES[args.outtype][1]
    files = {
        "trunk": args.out / f"tiny-qwen4exp-{label}.gguf",
        "mtp": args.out / "MTP" / f"mtp-tiny-qwen4exp-{label}.gguf",
    }
    for part, path in files.items():
        write_file(gguf, base, part, checkpoint=args.checkpoint, outtype=args.outtype, path=path)
        print(check_file(gguf, part, args.checkpoint, path))


if __name__ == "__main__":
    main()
