#!/usr/bin/env python
"""Record the traces that `lucebox sim` replays, on the built-in model, or check that they still come out the same.

    python scripts/record_traces.py            # writes pylucebox/sim/data/traces/*.trace.npz, about half a minute
    python scripts/record_traces.py --check    # follows the recorded texts again and compares every draft
    python scripts/record_traces.py --shared-noise FOLDER    # texts of temperature 1.0 whose drafts share the noise

Texts are generated without drafts. Those whose drafts share the sampler's noise are generated again by the check, since
there is no noise where a text is followed. The one that drifts is put together from parts of the others and followed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pylucebox._build import DEMO_MODEL
from pylucebox._sampling import SamplingParams
from pylucebox.ab import workloads
from pylucebox.cli._demo_prompts import PROMPTS
from pylucebox.sim.record import OpenRecorder, TextSource, record
from pylucebox.sim.trace import Trace
from pylucebox.sim.trace_file import SUFFIX, read_trace, write_trace

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "pylucebox" / "sim" / "data" / "traces"
N_CTX = 4096
N_TOKENS = 512
LIKELIEST = "mt19937"  # drafts are the likeliest tokens, also where a text is followed
COUPLED = "gumbel"  # the default: drafts share the sampler's noise, and "agrees" is what is foretold of them
N_PART = 160  # tokens of each part of the text that drifts


class Text(NamedTuple):
    """A text: its name and kind, the workload of `lucebox ab` or prompt of `lucebox demo` it begins with, and how.

    Seeds were chosen so that the text neither ends early nor repeats itself, which flatters drafts, and so that how
    often drafts hold is spread over what larger models show.
    """

    name: str
    kind: str
    prompt: str
    sampling: SamplingParams


GREEDY = SamplingParams(temperature=0.0, seed=0)


def _sampled(temperature: float, seed: int) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=seed, sampler_rng=LIKELIEST)


def _card(seed: int, rng: str = LIKELIEST) -> SamplingParams:
    """Sample as the model card of Qwen3 models recommends."""
    return SamplingParams(temperature=1.0, seed=seed, top_k=20, top_p=0.95, min_p=0.0, sampler_rng=rng)


def _open(seed: int, min_p: float, rng: str = LIKELIEST) -> SamplingParams:
    """Sample from the whole distribution."""
    return SamplingParams(temperature=1.0, seed=seed, top_k=0, top_p=1.0, min_p=min_p, sampler_rng=rng)


TEXTS = (
    Text("code", "code", "demo:code", _sampled(0.7, 1)),
    Text("module", "code", "sweep-code", _sampled(0.7, 3)),
    Text("edit", "edit", "code-edit", GREEDY),
    Text("counting", "count", "sweep-count", GREEDY),
    Text("story", "prose", "prose-story", _sampled(0.7, 4)),
    Text("essay", "prose", "prose-essay", _sampled(0.7, 4)),
    Text("json", "json", "json", GREEDY),
    Text("csv", "table", "csv-table", GREEDY),
    Text("table", "table", "demo:table", _sampled(0.7, 2)),
    Text("dialogue", "dialogue", "dialogue", _sampled(0.9, 5)),
    Text("code-temperature-1", "sampled", "demo:code", _card(4)),
    Text("dialogue-temperature-1", "sampled", "dialogue", _card(5)),
    Text("story-temperature-1", "sampled", "prose-story", _open(1, 0.0)),
    Text("code-coupled", "sampled", "demo:code", _card(6, COUPLED)),
    Text("dialogue-coupled", "sampled", "dialogue", _card(5, COUPLED)),
    Text("story-coupled", "sampled", "prose-story", _open(2, 0.0, COUPLED)),
    Text("entropy", "noise", "entropy", _open(2, 0.05)),
)
SHARED_NOISE_SEEDS = {"code-temperature-1": 1, "story-temperature-1": 2}  # with theirs these texts end early
DRIFT = ("code", "story", "json", "entropy", "module")


def sharing_noise(text: Text) -> Text:
    """Return a text whose drafts share the noise of its draws."""
    seed = SHARED_NOISE_SEEDS.get(text.name, text.sampling.seed)
    sampling = replace(text.sampling, seed=seed, sampler_rng="gumbel")
    return text._replace(name=f"{text.name}-shared-noise", sampling=sampling)


def record_sharing_noise(recorder: OpenRecorder) -> Iterator[Trace]:
    """Record the texts of temperature 1.0 with drafts that share the noise."""
    for text in map(sharing_noise, TEXTS):
        if text.sampling.temperature == 1.0:
            source = TextSource(
                name=text.name,
                kind=text.kind,
                prompt=prompt_of(text, recorder),
                max_tokens=N_TOKENS,
                sampling=text.sampling,
            )
            yield record(recorder.session, source, recorder.facts)


def prompt_of(text: Text, recorder: OpenRecorder) -> list[int]:
    """Return the ids of a text's prompt."""
    if text.prompt.startswith("demo:"):
        name = text.prompt.partition(":")[2]
        return recorder.tokenize(next(prompt.text for prompt in PROMPTS if prompt.name == name))
    suite = workloads.build_suite("full", only=[text.prompt], tokenize=recorder.tokenize, n_ctx=N_CTX)
    return recorder.tokenize(suite.workloads[0].requests[0].prompt)


def generate(text: Text, prompt: list[int], recorder: OpenRecorder) -> Trace:
    """Record a text while it is generated."""
    source = TextSource(name=text.name, kind=text.kind, prompt=prompt, max_tokens=N_TOKENS, sampling=text.sampling)
    return record(recorder.session, source, recorder.facts)


def record_all(recorder: OpenRecorder) -> Iterator[Trace]:
    """Record every text."""
    prompts, traces = {}, {}
    for text in TEXTS:
        prompts[text.name] = prompt_of(text, recorder)
        traces[text.name] = generate(text, prompts[text.name], recorder)
        yield traces[text.name]
    followed = list(traces[DRIFT[0]].tokens[:N_PART])
    for name in DRIFT[1:]:
        # A prompt opens each part; the end of a long one is enough.
        followed += prompts[name][-32:] + list(traces[name].tokens[:N_PART])
    source = TextSource(
        name="drift",
        kind="mixed",
        prompt=prompts[DRIFT[0]],
        max_tokens=len(followed),
        sampling=GREEDY,
        forced=followed,
    )
    yield record(recorder.session, source, recorder.facts)


def follow(trace: Trace, prompt: list[int], recorder: OpenRecorder) -> Trace:
    """Record the text of a trace again by following it."""
    source = TextSource(
        name=trace.name,
        kind=trace.kind,
        prompt=prompt,
        max_tokens=trace.max_tokens,
        sampling=GREEDY,
        forced=trace.tokens,
    )
    return record(recorder.session, source, recorder.facts)


def check(recorder: OpenRecorder) -> int:
    """Compare all traces with what the model drafts now; return how many differ."""
    n_wrong = 0
    prompts = {text.name: prompt_of(text, recorder) for text in TEXTS}
    prompts["drift"] = prompts[DRIFT[0]]
    coupled = {
        text.name: text for text in TEXTS if text.sampling.sampler_rng == COUPLED and not text.sampling.is_greedy
    }
    for name, prompt in prompts.items():
        stored = read_trace(FOLDER / f"{name}{SUFFIX}")
        text = coupled.get(name)
        again = follow(stored, prompt, recorder) if text is None else generate(text, prompt, recorder)
        n_other = sum(a != b for a, b in zip(stored.drafts, again.drafts, strict=True))
        same = stored.digest == again.digest
        n_wrong += not same
        print(f"{name}: {'the same' if same else f'{n_other} of {len(stored.drafts)} chains differ'}")
    return n_wrong


def main() -> int:
    """Record or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing; exit status 1 if any differs")
    parser.add_argument("--shared-noise", metavar="FOLDER", help="record those of temperature 1.0 with gumbel, there")
    args = parser.parse_args()
    folder = Path(args.shared_noise or FOLDER)
    with OpenRecorder(DEMO_MODEL, n_ctx=N_CTX, n_threads=1, device="cpu") as recorder:
        if args.check:
            return int(check(recorder) > 0)
        folder.mkdir(parents=True, exist_ok=True)
        for trace in record_sharing_noise(recorder) if args.shared_noise else record_all(recorder):
            path = folder / f"{trace.name}{SUFFIX}"
            write_trace(path, trace)
            n = len(trace.match)
            survival = " ".join(f"{sum(length >= d for length in trace.match) / n:.2f}" for d in range(1, 8))
            print(f"{trace.name}: {len(trace.tokens)} tokens, drafts hold to depth 1..7: {survival}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
