"""Train the demo model's trunk and MTP block together, for a fixed time on one GPU.

The time is cut into three phases of growing context. ``--check`` runs a few steps of every phase and prints their
cost. Results in the output folder: ``w*.safetensors`` (bfloat16 weights), ``checkpoint.pt`` (to resume from),
``log.txt`` and ``final.json`` (held-out losses and acceptance).

    python -m scripts.demo_model.train --data CORPUS/data --out RUN
"""

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from .config import ModelConfig
from .delta_net import GatedDeltaNet
from .evaluation import greedy_acceptance, held_out_loss, load_held_out
from .losses import JointLoss, StepLosses
from .model import Qwen4Exp

PEAK_LR, FINAL_LR_SHARE, WARMUP_STEPS, WEIGHT_DECAY, CLIP = 2e-3, 0.02, 200, 0.05, 1.0
LOG_EVERY_S, SAVE_EVERY_S, EVAL_EVERY_S = 8, 100, 150
MAX_FILE_BYTES = 15 << 20


@dataclass(frozen=True)
class Phase:
    """A part of the run.

    Attributes
    ----------
    until
        Share of the time at which the phase ends.
    n_tokens, n_batch
        Context and sequences of a step.
    depth
        Draft depths that are trained.
    loss_rows
        Sequences that the indexers' loss is computed on.
    """

    until: float
    n_tokens: int
    n_batch: int
    depth: int
    loss_rows: int


PHASES = (Phase(0.62, 512, 128, 3, 8), Phase(0.89, 2048, 32, 4, 2), Phase(1.01, 4096, 16, 4, 1))


def learning_rate(step: int, share: float) -> float:
    """Linear warm-up in steps, then a cosine over the share of the time that has passed."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
    return PEAK_LR * min(1.0, (step + 1) / WARMUP_STEPS) * (FINAL_LR_SHARE + (1 - FINAL_LR_SHARE) * cosine)


class Trainer:
    """Model, optimiser and data of a run."""

    def __init__(self, data: Path, out: Path, seed: int) -> None:
        self.out = out
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(seed)
        config = ModelConfig()
        self.model = Qwen4Exp(config).to(self.device)
        # the same weights in a module that is never compiled, for evaluation
        self.eager = Qwen4Exp(config).to(self.device)
        self.eager.load_state_dict(self.model.state_dict(), assign=True)
        self.model.dtype = self.eager.dtype = torch.bfloat16
        self.losses = JointLoss(self.model)
        self.step = self.n_skipped = 0
        if self.device == "cuda":
            self._compile()
        decayed, rest = [], []
        for name, parameter in self.model.named_parameters():
            matrix = parameter.ndim >= 2 and "embed" not in name and "conv1d" not in name
            (decayed if matrix else rest).append(parameter)
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": rest, "weight_decay": 0.0}],
            lr=PEAK_LR,
            betas=(0.9, 0.95),
            eps=1e-8,
            fused=self.device == "cuda",
        )
        tokens = np.fromfile(data / "train.bin", np.uint16)
        self.tokens = torch.from_numpy(tokens.astype(np.int32)).to(self.device)
        self.held_out = load_held_out(str(data), self.device)

    def _compile(self) -> None:
        import torch._inductor.config  # noqa: PLC0415 (only there with a GPU compiler)

        from .scan_triton import scan  # noqa: PLC0415

        GatedDeltaNet.scan = staticmethod(scan)
        torch.backends.cuda.enable_cudnn_sdp(False)
        # torch 2.11: a padded argmax over an odd-sized slice reads out of bounds
        torch._inductor.config.comprehensive_padding = False
        torch._dynamo.config.cache_size_limit = 64
        torch._dynamo.config.accumulated_cache_size_limit = 512
        language_model, mtp = self.model.model.language_model, self.model.mtp
        for layer in language_model.layers:
            layer.compile(dynamic=False)
        language_model.hyper_connection_mixer.compile(dynamic=False)
        mtp.hyper_connection_mixer.compile(dynamic=False)
        mtp.first = torch.compile(mtp.first, dynamic=False)
        mtp.chained = torch.compile(mtp.chained, dynamic=False)
        self.losses.next_token_loss = torch.compile(self.losses.next_token_loss, dynamic=False)
        self.losses.draft_loss = torch.compile(self.losses.draft_loss, dynamic=False)

    def batch(self, phase: Phase) -> tuple[Tensor, Tensor]:
        """Draw random windows: tokens, and the token after each."""
        n = phase.n_tokens
        offsets = torch.randint(len(self.tokens) - n - 2, (phase.n_batch,), device=self.device)
        windows = self.tokens[offsets[:, None] + torch.arange(n + 1, device=self.device)].long()
        return windows[:, :n].contiguous(), windows[:, 1:].contiguous()

    def train_step(self, phase: Phase, rate: float) -> tuple[StepLosses, Tensor]:
        """One optimiser step; returns its losses and the norm of the gradient."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        losses = self.losses(*self.batch(phase), sparse=True, depth=phase.depth, loss_rows=phase.loss_rows)
        losses.total.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        skipped = (~torch.isfinite(norm)).float()
        if self.device == "cuda":
            self.optimizer.found_inf = skipped  # the fused step then leaves the weights alone
        self.n_skipped = self.n_skipped + skipped
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return losses, norm

    def log(self, text: str) -> None:
        """Print a line and append it to the log."""
        print(text, flush=True)
        with (self.out / "log.txt").open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def held_out_losses(self, n_tokens: int = 512, n_windows: int = 64) -> dict[str, float]:
        """Held-out loss per category, in nats per token."""
        return {
            category: round(held_out_loss(self.eager, tokens, n_tokens, n_windows), 4)
            for category, tokens in self.held_out.items()
        }

    def save(self) -> None:
        """Write the weights as bfloat16, in files of at most `MAX_FILE_BYTES`."""
        groups: list[dict[str, Tensor]] = [{}]
        for name, tensor in self.model.state_dict().items():
            kept = tensor if tensor.dtype == torch.int64 else tensor.detach().to(torch.bfloat16)
            if sum(t.nbytes for t in groups[-1].values()) + kept.nbytes > MAX_FILE_BYTES:
                groups.append({})
            groups[-1][name] = kept.cpu().contiguous()
        for i, group in enumerate(groups):
            scratch = self.out / f"w{i}.safetensors.tmp"
            save_file(group, scratch)
            scratch.replace(self.out / f"w{i}.safetensors")

    def save_progress(self, elapsed_s: float) -> None:
        """Write what `resume` needs."""
        scratch = self.out / "checkpoint.pt.tmp"
        weights = dict(self.model.named_parameters())
        torch.save(
            {"model": weights, "optimizer": self.optimizer.state_dict(), "step": self.step, "elapsed_s": elapsed_s},
            scratch,
        )
        scratch.replace(self.out / "checkpoint.pt")

    def resume(self) -> float:
        """Go on from the last `save_progress`; returns the seconds trained before, 0 without one."""
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return 0.0
        saved = torch.load(path, map_location=self.device)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(saved["model"][name])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step = saved["step"]
        torch.manual_seed(self.step)
        self.log(f"resumed at step {self.step}, {saved['elapsed_s']:.0f} s")
        return saved["elapsed_s"]

    def run(self, seconds: float, elapsed_s: float) -> None:
        """Train until the time is over, then evaluate."""
        start = time.monotonic() - elapsed_s
        last_log = last_save = last_eval = time.monotonic()
        while (elapsed := time.monotonic() - start) < seconds:
            share = elapsed / seconds
            phase = next(p for p in PHASES if share < p.until)
            rate = learning_rate(self.step, share)
            losses, norm = self.train_step(phase, rate)
            if self.step % 20:
                continue
            now = time.monotonic()
            if now - last_log > LOG_EVERY_S:
                last_log = now
                accepted = [round(x, 3) for x in losses.accepted.tolist()]
                self.log(
                    f"step {self.step} t {elapsed:.0f} T {phase.n_tokens} lr {rate:.2e} loss {losses.total.item():.3f} "
                    f"lm {losses.next_token.item():.3f} mtp {losses.draft.item():.3f} "
                    f"kl {float(losses.indexer):.3f} gn {norm.item():.2f} acc {accepted} bad {int(self.n_skipped)}"
                )
            if now - last_save > SAVE_EVERY_S:
                last_save = now
                self.save()
                self.save_progress(elapsed)
            if now - last_eval > EVAL_EVERY_S:
                last_eval = now
                self.log("VAL " + json.dumps(self.held_out_losses()))
        self.save()
        self.evaluate()

    def evaluate(self) -> None:
        """Write ``final.json``, measured as the model is exported: bfloat16 weights, float32 arithmetic."""
        for parameter in self.model.parameters():
            parameter.data.copy_(parameter.data.to(torch.bfloat16).float())
        self.eager.dtype = torch.float32
        result = {
            "steps": self.step,
            "val_loss_512": self.held_out_losses(),
            "val_loss_2048": self.held_out_losses(2048, 12),
            "acceptance": greedy_acceptance(self.eager, self.held_out),
        }
        (self.out / "final.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
        self.log("FINAL " + json.dumps(result))

    def check(self, n_steps: int = 12) -> None:
        """Time a few steps of every phase, with its memory and losses."""
        for phase in PHASES:
            start = time.monotonic()
            self.train_step(phase, 1e-4)
            self._synchronize()
            compile_s = time.monotonic() - start
            start = time.monotonic()
            for _ in range(n_steps):
                losses, norm = self.train_step(phase, 1e-3)
            self._synchronize()
            step_ms = (time.monotonic() - start) / n_steps * 1e3
            peak = torch.cuda.max_memory_allocated() / 2**30 if self.device == "cuda" else 0.0
            self.log(
                f"T {phase.n_tokens}: first step {compile_s:.1f} s, then {step_ms:.0f} ms, peak {peak:.1f} GiB, "
                f"loss {losses.total.item():.3f}, lm {losses.next_token.item():.3f}, gn {norm.item():.2f}"
            )

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="data folder written by make_corpus.py")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--seconds", type=float, default=1500, help="training time, compiling included (default: 1500)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the weights and batches (default: 1)")
    parser.add_argument("--resume", action="store_true", help="go on from checkpoint.pt of the output folder")
    parser.add_argument("--check", action="store_true", help="only time a few steps of every phase")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(args.data, args.out, args.seed)
    if args.check:
        trainer.check()
    else:
        trainer.run(args.seconds, trainer.resume() if args.resume else 0.0)


if __name__ == "__main__":
    main()
