"""Write reference outputs of the shipped model for the parity tests, ``tests/data/reference.npz``.

The reference runs on the weights of the GGUF files, in float32 arithmetic on a CPU, without a cache. For every prompt
of `PROMPTS` the file holds

* ``NAME.ids``: the prompt's tokens;
* ``NAME.trunk_logits`` (2, vocab), float32: logits at the last two positions;
* ``NAME.greedy`` (24,): greedy tokens after the prompt; the drafts come after the first of them;
* ``NAME.draft_tokens_NORM`` (7,), ``NAME.draft_probability_NORM`` (7,): the chain and the softmax value of each draft
  over the whole vocabulary. NORM is ``full`` for the norm of the residual over all streams, as trained, and
  ``per_stream`` for a norm of each stream.

    python -m scripts.demo_model.reference
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from .from_gguf import DEMO_MTP, DEMO_TRUNK, load_gguf
from .inference import continue_text, draft_chain, trunk_logits
from .model import Qwen4Exp
from .prompts import PROMPTS_FILE, load_prompts
from .tokenizer import tokenizer_of_gguf

# of most kinds, and two so long that the budget of sparse attention, 128 tokens and the tail, does not hold them
PROMPTS = ("code-1", "code-2", "code-3", "prose-1", "counting-1", "json-1", "edit-1", "chat-1")
N_ROWS, N_GREEDY, DEPTH = 2, 24, 7
NORMS = ("full", "per_stream")


def top_probability(logits: torch.Tensor) -> np.ndarray:
    """Give the largest softmax value of each row, as float32."""
    return logits.double().softmax(-1).amax(-1).float().numpy()


def reference_outputs(model: Qwen4Exp, ids: list[int]) -> dict[str, np.ndarray]:
    """Compute everything that the file holds of a prompt.

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
    out = {"ids": np.array(ids, np.int32), "trunk_logits": logits[-N_ROWS:].numpy(), "greedy": greedy}
    for norm in NORMS:
        model.mtp.normalise_streams(norm == "per_stream")
        drafts = draft_chain(model, prompt, wide, int(greedy[0]), depth=DEPTH)
        out[f"draft_tokens_{norm}"] = drafts.tokens.numpy().astype(np.int32)
        out[f"draft_probability_{norm}"] = top_probability(drafts.logits)
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trunk", type=Path, default=DEMO_TRUNK, help="GGUF file (default: the built-in model's)")
    parser.add_argument("--mtp", type=Path, default=DEMO_MTP, help="its sidecar (default: the built-in model's)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).resolve().parents[2] / "tests" / "data" / "reference.npz",
        help="file to write (default: tests/data/reference.npz)",
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_gguf(args.trunk, args.mtp)
    prompts = {prompt.name: prompt for prompt in load_prompts(PROMPTS_FILE, tokenizer_of_gguf(args.trunk))}
    arrays: dict[str, np.ndarray] = {}
    for name in PROMPTS:
        outputs = reference_outputs(model, prompts[name].ids)
        arrays |= {f"{name}.{key}": value for key, value in outputs.items()}
        differ = int((outputs["draft_tokens_full"] != outputs["draft_tokens_per_stream"]).sum())
        print(f"{name}: {len(prompts[name].ids)} tokens, the norms differ in {differ} of {DEPTH} drafts", flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out, **arrays)
    print(f"{args.out}: {len(PROMPTS)} prompts, {args.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
