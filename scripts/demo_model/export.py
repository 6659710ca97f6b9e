"""Write trained weights as a Hugging Face checkpoint in the real model's layout.

For example:

    python -m scripts.demo_model.export --weights RUN/w*.safetensors --tokenizer CORPUS/tokenizer --out CHECKPOINT
"""

import argparse
from pathlib import Path

from .checkpoint import checkpoint_tensors, load_tensors, write_checkpoint
from .config import ModelConfig
from .model import Qwen4Exp


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, nargs="+", required=True, help="files written by train.py")
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer folder written by make_corpus.py")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")
    parser.add_argument("--files", type=int, default=3, help="safetensors files (default: 3)")
    args = parser.parse_args()
    config = ModelConfig()
    model = Qwen4Exp(config)
    model.load_state_dict(load_tensors(args.weights))
    tensors = checkpoint_tensors(model.state_dict(), config)
    n_bytes = write_checkpoint(args.out, tensors, config, args.tokenizer, args.files)
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{args.out}: {len(tensors)} tensors, {n_parameters} parameters, {n_bytes / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
