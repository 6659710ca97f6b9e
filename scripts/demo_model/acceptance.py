"""Draft chains of the reference model at many positions of held-out texts, for comparison with an engine.

Every prompt of ``prompts.json`` is continued by the trunk twice, greedily and sampled at temperature 1. At each of the
first new tokens a chain of 7 is drafted, as an engine drafts when it is forced along the same tokens: at step j it has
read ``ids[: n_prompt + j]``, its last token is ``ids[n_prompt + j]``, and the drafts stand for what follows. The file
holds, per text and step,

* ``draft_tokens`` and ``top1_probability``: the chain, and its largest softmax values over the whole vocabulary;
* ``trunk_argmax``: what the trunk says after the last token, that is the token a greedy engine would sample there;
* ``near_ties``: ``[step, depth, gap]`` where the two best logits of a draft are less than `NEAR_TIE` apart, or those of
  the trunk (depth 0).

The weights are those of the shipped GGUF files. ``--hidden-norm`` and ``--mode`` show what the other readings of the
model would accept. The committed file has the defaults.

    python -m scripts.demo_model.acceptance
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from .config import END_OF_TEXT, IM_END
from .from_gguf import DEMO_MTP, DEMO_TRUNK, load_gguf
from .inference import MODES, Drafts, continue_text, draft_chain, trunk_logits
from .model import Qwen4Exp
from .prompts import PROMPTS_FILE, Prompt, load_prompts
from .tokenizer import tokenizer_of_gguf

DEPTH, N_STEPS, SEED = 7, 48, 3
NEAR_TIE = 1e-3
TEMPERATURES = {"greedy": 0.0, "sampled": 1.0}
HERE = Path(__file__).resolve()


@dataclass(frozen=True)
class Trace:
    """Chains along one text.

    Attributes
    ----------
    name, category
        Prompt and way of continuing, and what kind of text it is.
    n_prompt
        Tokens of the prompt; the first step's last token is ``ids[n_prompt]``.
    ids
        Prompt and continuation.
    trunk_argmax
        The trunk's choice after each step's last token, ``(steps,)``.
    draft_tokens, top1_probability
        The chain of each step, ``(steps, 7)``.
    near_ties
        Step, depth and gap of close choices.
    """

    name: str
    category: str
    n_prompt: int
    ids: list[int]
    trunk_argmax: list[int]
    draft_tokens: list[list[int]]
    top1_probability: list[list[float]]
    near_ties: list[tuple[int, int, float]]

    def match_lengths(self) -> Iterator[int]:
        """Give for each step the number of drafts that equal the text before the first that does not."""
        for step, drafts in enumerate(self.draft_tokens):
            text = self.ids[self.n_prompt + step + 1 :]
            yield next((i for i, (a, b) in enumerate(zip(drafts, text, strict=False)) if a != b), DEPTH)


def near_ties(trunk: Tensor, chains: Sequence[Drafts]) -> Iterator[tuple[int, int, float]]:
    """Find the close choices of the trunk, logits ``(steps, vocab)``, and of the chains."""
    for step, (row, chain) in enumerate(zip(trunk, chains, strict=True)):
        best = torch.cat((row[None], chain.logits)).topk(2).values
        for depth, gap in enumerate((best[:, 0] - best[:, 1]).tolist()):
            if gap < NEAR_TIE:
                yield step, depth, round(gap, 6)


def trace_text(model: Qwen4Exp, prompt: Prompt, kind: str, mode: str) -> Trace:
    """Continue a prompt and draft at each step.

    Parameters
    ----------
    model
        The reference model.
    prompt
        The prompt.
    kind
        A key of `TEMPERATURES`.
    mode
        Attention of the MTP block, see `inference.draft_chain`.

    Returns
    -------
    Trace
        `N_STEPS` steps, or fewer where the text ends before.
    """
    n = len(prompt.ids)
    ids = continue_text(model, torch.tensor(prompt.ids), N_STEPS + DEPTH, TEMPERATURES[kind], SEED)
    ends = [i for i, token in enumerate(ids.tolist()) if i >= n and token in {END_OF_TEXT, IM_END}]
    ids = ids[: ends[0] + 1] if ends else ids
    logits, wide = trunk_logits(model, ids)
    steps = range(max(0, len(ids) - n - DEPTH))
    chains = [draft_chain(model, ids[: n + j], wide[: n + j], int(ids[n + j]), depth=DEPTH, mode=mode) for j in steps]
    return Trace(
        name=f"{prompt.name}-{kind}",
        category=prompt.category,
        n_prompt=n,
        ids=ids.tolist(),
        trunk_argmax=[int(logits[n + j].argmax()) for j in steps],
        draft_tokens=[chain.tokens.tolist() for chain in chains],
        top1_probability=[[round(p, 4) for p in c.logits.softmax(-1).amax(-1).tolist()] for c in chains],
        near_ties=list(near_ties(logits[n : n + len(chains)], chains)),
    )


def acceptance_per_depth(match_lengths: Iterable[int]) -> list[tuple[float, float, int]]:
    """Give the conditional acceptance of each depth, its binomial standard error, and the chains it is taken from."""
    lengths = list(match_lengths)
    out = []
    for depth in range(1, DEPTH + 1):
        alive = sum(length >= depth - 1 for length in lengths)
        share = sum(length >= depth for length in lengths) / alive if alive else math.nan
        error = math.sqrt(share * (1 - share) / alive) if alive else math.nan
        out.append((share, error, alive))
    return out


def report(traces: list[Trace]) -> str:
    """Write acceptance per depth for greedy and sampled texts, per category and in total."""
    lines = []
    for kind in TEMPERATURES:
        chosen = [trace for trace in traces if trace.name.endswith(kind)]
        for category in [*dict.fromkeys(trace.category for trace in chosen), "all"]:
            lengths = [n for t in chosen if category in {"all", t.category} for n in t.match_lengths()]
            shares = " ".join(f"{share:.3f}" for share, _, _ in acceptance_per_depth(lengths))
            lines.append(f"{kind:8} {category:9} n {len(lengths):4} mean {sum(lengths) / len(lengths):.2f}  {shares}")
        errors = " ".join(f"{error:.3f}" for _, error, _ in acceptance_per_depth(lengths))
        lines.append(f"{kind:8} standard error of all       {errors}")
    return "\n".join(lines)


def write_traces(traces: list[Trace], out: Path, settings: dict[str, str]) -> None:
    """Write the traces as JSON, one text per line."""
    texts = ",\n".join("  " + json.dumps(asdict(trace), separators=(",", ":")) for trace in traces)
    head = json.dumps({"model": "tiny-qwen4exp", "depth": DEPTH, **settings})[1:-1]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(f'{{{head}, "texts": [\n{texts}\n]}}\n', encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trunk", type=Path, default=DEMO_TRUNK, help="GGUF file (default: the built-in model's)")
    parser.add_argument("--mtp", type=Path, default=DEMO_MTP, help="its sidecar (default: the built-in model's)")
    parser.add_argument(
        "--out",
        type=Path,
        default=HERE.parents[2] / "tests" / "data" / "acceptance_reference.json",
        help="file to write (default: tests/data/acceptance_reference.json)",
    )
    parser.add_argument("--mode", choices=MODES, default="qsa", help="attention of the MTP block (default: qsa)")
    parser.add_argument(
        "--hidden-norm",
        choices=("full", "per-stream"),
        default="full",
        help="norm of the residual that the MTP block takes: over all streams, as trained, or each (default: full)",
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load_gguf(args.trunk, args.mtp)
    model.mtp.normalise_streams(args.hidden_norm == "per-stream")
    traces = []
    for prompt in load_prompts(PROMPTS_FILE, tokenizer_of_gguf(args.trunk)):
        traces += [trace_text(model, prompt, kind, args.mode) for kind in TEMPERATURES]
        print(f"{prompt.name}: {[len(trace.draft_tokens) for trace in traces[-2:]]} steps", flush=True)
    write_traces(traces, args.out, {"mode": args.mode, "hidden_norm": args.hidden_norm})
    print(f"{report(traces)}\n{args.out}: {len(traces)} texts, {args.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
