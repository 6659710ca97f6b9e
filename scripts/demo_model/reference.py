"""Write reference outputs of the checkpoint: bfloat16 weights, float32 arithmetic, no cache, CPU.

One NAME.npz per prompt, which holds

* ``ids``: the prompt's tokens;
* ``trunk_logits`` (8, vocab): logits at the last 8 positions; ``trunk_logits_dense``: without sparse attention;
* ``trunk_wide`` (wide,): residual of the last position, which the MTP block takes;
* ``greedy`` (24,): greedy tokens after the prompt; the first of them is given to the drafts;
* ``draft_logits_MODE`` (7, vocab), ``draft_tokens_MODE`` (7,), ``draft_wide_MODE`` (7, wide): the chained drafts, with
  the attention modes of `inference.draft_chain`;
* ``accepted_MODE``: how many of them equal the greedy text before the first that does not.

    python -m scripts.demo_model.reference --checkpoint CHECKPOINT --out REFERENCE
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from .checkpoint import load_checkpoint
from .inference import MODES, continue_text, draft_chain, trunk_logits
from .model import Qwen4Exp
from .prompts import load_prompts

N_ROWS, N_GREEDY, DEPTH = 8, 24, 7


def accepted(drafts: np.ndarray, text: np.ndarray) -> int:
    """Count the drafts that equal the text before the first that does not."""
    return int((drafts == text[: len(drafts)]).cumprod().sum())


def reference_outputs(model: Qwen4Exp, ids: list[int]) -> dict[str, np.ndarray]:
    """Compute everything that a file holds.

    Parameters
    ----------
    model
        The reference model.
    ids
        Tokens of the prompt.

    Returns
    -------
    dict
        Arrays by name.
    """
    prompt = torch.tensor(ids)
    logits, wide = trunk_logits(model, prompt)
    greedy = continue_text(model, prompt, N_GREEDY)[len(ids) :].numpy().astype(np.int32)
    out = {
        "ids": np.array(ids, np.int32),
        "trunk_logits": logits[-N_ROWS:].numpy(),
        "trunk_logits_dense": trunk_logits(model, prompt, sparse=False)[0][-N_ROWS:].numpy(),
        "trunk_wide": wide[-1].numpy(),
        "greedy": greedy,
    }
    for mode in MODES:
        drafts = draft_chain(model, prompt, wide, int(greedy[0]), depth=DEPTH, mode=mode)
        tokens = drafts.tokens.numpy().astype(np.int32)
        out |= {
            f"draft_logits_{mode}": drafts.logits.numpy(),
            f"draft_tokens_{mode}": tokens,
            f"draft_wide_{mode}": drafts.wide.numpy(),
            f"accepted_{mode}": np.int32(accepted(tokens, greedy[1:])),
        }
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder written by export.py")
    parser.add_argument("--out", type=Path, required=True, help="folder of the .npz files")
    parser.add_argument(
        "--prompts",
        type=Path,
        default=Path(__file__).with_name("prompts.json"),
        help="file of prompts (default: prompts.json beside this script)",
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_checkpoint(args.checkpoint)
    args.out.mkdir(parents=True, exist_ok=True)
    for prompt in load_prompts(args.prompts, args.checkpoint):
        outputs = reference_outputs(model, prompt.ids)
        np.savez_compressed(args.out / f"{prompt.name}.npz", **outputs)
        counts = {mode: int(outputs[f"accepted_{mode}"]) for mode in MODES}
        print(f"{prompt.name}: {len(prompt.ids)} tokens, accepted of {DEPTH}: {counts}", flush=True)


if __name__ == "__main__":
    main()
