"""Cut the reference outputs down to what the parity tests read, in one small file.

Reads the NAME.npz files that ``reference.py`` wrote and writes one file with the keys ``NAME.ids``, ``NAME.greedy``,
``NAME.trunk_logits`` (the last 2 positions, float32), and for every attention mode ``NAME.draft_tokens_MODE``,
``NAME.draft_probability_MODE`` (largest softmax value over the whole vocabulary, per depth) and ``NAME.accepted_MODE``.

    python -m scripts.demo_model.trim_reference --reference REFERENCE
"""

import argparse
from pathlib import Path

import numpy as np

N_ROWS = 2
DRAFT_LOGITS = "draft_logits_"


def top_probability(logits: np.ndarray) -> np.ndarray:
    """Give the largest softmax value of each row, as float32."""
    wide = logits.astype(np.float64)
    return (1 / np.exp(wide - wide.max(-1, keepdims=True)).sum(-1)).astype(np.float32)


def trim(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Cut one prompt's arrays down.

    Parameters
    ----------
    arrays
        Contents of a file written by ``reference.py``.

    Returns
    -------
    dict
        What the tests read.
    """
    out = {
        "ids": arrays["ids"],
        "greedy": arrays["greedy"],
        "trunk_logits": arrays["trunk_logits"][-N_ROWS:].astype(np.float32),
    }
    for key, value in arrays.items():
        if key.startswith(DRAFT_LOGITS):
            mode = key.removeprefix(DRAFT_LOGITS)
            out[f"draft_probability_{mode}"] = top_probability(value)
            out |= {name: arrays[name] for name in (f"draft_tokens_{mode}", f"accepted_{mode}")}
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True, help="folder written by reference.py")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).resolve().parents[2] / "tests" / "data" / "reference.npz",
        help="file to write (default: tests/data/reference.npz)",
    )
    args = parser.parse_args()
    trimmed: dict[str, np.ndarray] = {}
    paths = sorted(args.reference.glob("*.npz"))
    for path in paths:
        with np.load(path) as arrays:
            trimmed |= {f"{path.stem}.{key}": value for key, value in trim(dict(arrays)).items()}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out, **trimmed)
    print(f"{args.out}: {len(paths)} prompts, {args.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
