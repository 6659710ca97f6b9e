"""All drafts of a call in one launch: those that a launch for each draft makes, and one wait of the host."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from _layouts import layout_e, load, metadata_of, save, without
from _models import WriteModel

from pylucebox import Engine, SamplingParams
from pylucebox._build import DEMO_MODEL
from pylucebox._gguf_write import MetaPair, pack_u32
from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._session import Ask, MoreDrafts, Proposal
from pylucebox._sidecar import find_sidecar
from pylucebox.testing import K_QUANT_SPEC, TinyModelFiles, TinySpec

OPTIONS = SessionOptions(n_ctx=512, n_seq=4, n_ubatch=64, max_width=8)
GREEDY = SamplingParams(temperature=0.0, seed=0, ignore_eos=True)
# Both compute the same logits; the sums of their exponentials are added up in another order.
SAME_PROB = 1e-5

# Attention is sparse from 14 tokens on here, and from 66 in the others.
SPARSE = TinySpec(name="sparse", indexer_top_k=12)
SPECS: dict[str, TinySpec] = {
    "in-file": TinySpec(),
    "own tables": TinySpec(mtp="sidecar", weight_type="q8_0"),
    "borrowed tables": TinySpec(mtp="shared", kind="agree", weight_type="f16"),
    "sparse attention": SPARSE,
    "k-quants": replace(K_QUANT_SPEC, weight_type="q4_K", mtp="shared"),
}


def opened(files: TinyModelFiles, **options: object) -> Model:
    in_file = files.sidecar is None
    return Model(ModelOptions(path=files.model, mtp_path=files.sidecar, mtp_in_file=in_file, **options))  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=[*SPECS, "built-in", "dense", "covers a part"])
def model(
    request: pytest.FixtureRequest, write_model: WriteModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Model]:
    with ExitStack() as stack:
        if request.param == "built-in":
            model = Model(ModelOptions(path=DEMO_MODEL, mtp_path=find_sidecar(DEMO_MODEL).path))
        elif request.param in SPECS:
            model = opened(write_model(SPECS[request.param]))
        else:
            change = dense if request.param == "dense" else covers_a_part
            files = write_model(TinySpec(mtp="sidecar", weight_type="q8_0"))
            path = change(files, tmp_path_factory.mktemp("mtp") / "mtp.gguf")
            model = Model(ModelOptions(path=files.model, mtp_path=path))
        stack.callback(model.close)
        yield model


def dense(files: TinyModelFiles, path: Path) -> Path:
    """Write an MTP file whose block has no index."""
    assert files.sidecar is not None
    header, tensors = load(files.sidecar)
    metadata = [pair for pair in metadata_of(header) if not pair.key.endswith("attention.compress_ratios")]
    ratios = MetaPair("qwen4exp.attention.compress_ratios", pack_u32(0))
    return save(path, [*metadata, ratios], without(tensors, [name for name in tensors if ".indexer." in name]))


def covers_a_part(files: TinyModelFiles, path: Path) -> Path:
    """Write an MTP file whose head has every third token, in no order."""
    assert files.sidecar is not None
    header, tensors = load(files.sidecar)
    (block,) = {int(name.split(".")[1]) for name in tensors if name.startswith("blk.")}
    return save(path, metadata_of(header), layout_e(tensors, block, {}, [*range(2, 288, 3), *range(0, 288, 3)]))


@dataclass
class Twins:
    """Two sessions that get the same calls; the drafts of one are chained."""

    chained: NativeSession
    stepwise: NativeSession
    n_drafts: int = 0

    def each(self, call: Callable[[NativeSession], object]) -> None:
        call(self.chained)
        call(self.stepwise)

    def prefill(self, seq: int, tokens: Sequence[int]) -> None:
        self.each(lambda s: s.prefill(seq, tokens, s.open_sampler(GREEDY, None), use_mtp=True))

    def propose(self, asks: Sequence[MoreDrafts]) -> None:
        (chained, _), (stepwise, _) = self.chained.propose(asks), self.stepwise.propose(asks)
        for a, b in zip(chained, stepwise, strict=True):
            self.compare(a, b)

    def compare(self, chained: Proposal, stepwise: Proposal) -> None:
        assert chained.tokens == stepwise.tokens
        assert chained.probs == pytest.approx(stepwise.probs, abs=SAME_PROB)
        self.n_drafts += len(chained.tokens)

    def cycle(self, asks: Sequence[Ask]) -> None:
        (chained, _), (stepwise, _) = self.chained.cycle(asks), self.stepwise.cycle(asks)
        for a, b in zip(chained, stepwise, strict=True):
            assert a.tokens == b.tokens
            self.compare(Proposal(a.seq, a.draft_tokens, a.draft_probs), Proposal(b.seq, b.draft_tokens, b.draft_probs))


@pytest.fixture
def twins(model: Model, request: pytest.FixtureRequest) -> Iterator[Twins]:
    options = replace(OPTIONS, **getattr(request, "param", {}))
    with ExitStack() as stack:
        pair = [NativeSession(model, replace(options, draft_chain=chain)) for chain in (True, False)]
        for session in pair:
            stack.callback(session.close)
        assert pair[0].info.draft_chain
        assert pair[0].why_stepwise() == ""
        assert not pair[1].info.draft_chain
        assert pair[1].why_stepwise() == "draft_chain is off"
        yield Twins(*pair)


IN_TRUNK_OR_NOT = pytest.mark.parametrize(
    "twins", [{"mtp_kv_in_trunk": True}, {"mtp_kv_in_trunk": False}], indirect=True, ids=["trunk", "own passes"]
)


@IN_TRUNK_OR_NOT
def test_chains_of_every_length_after_many_prompts(twins: Twins) -> None:
    rng = random.Random(1)
    for length in (1, 2, 5, 13, 70, 131):
        twins.prefill(0, [rng.randrange(97, 123) for _ in range(length)])
        for n in range(1, 8):
            (tokens, probs), (expected, expected_probs) = twins.chained.draft(0, n), twins.stepwise.draft(0, n)
            twins.compare(Proposal(0, tuple(tokens), tuple(probs)), Proposal(0, tuple(expected), tuple(expected_probs)))
        twins.each(lambda s: s.clear(0))
    assert twins.n_drafts == 6 * 28


@IN_TRUNK_OR_NOT
@pytest.mark.parametrize("n_seq", [1, 4])
def test_chains_that_are_extended_and_verified(twins: Twins, n_seq: int) -> None:
    rng = random.Random(n_seq)
    for seq in range(n_seq):
        twins.prefill(seq, [*b"abcabcabcabd", *range(97, 97 + 9 * seq)])
    for _ in range(12):
        for _ in range(rng.randrange(3)):
            twins.propose([MoreDrafts(seq, rng.choice((0, 1, 2, 7))) for seq in range(n_seq) if rng.random() < 0.8])
        twins.cycle([Ask(seq, rng.randint(1, 8), 8) for seq in range(n_seq) if seq == 0 or rng.random() < 0.8])
    assert twins.n_drafts > 30 * n_seq


@pytest.mark.parametrize("twins", [{"n_seq": 8, "n_ubatch": 32}], indirect=True)
def test_more_rows_than_one_launch_takes(twins: Twins) -> None:
    for seq in range(8):
        twins.prefill(seq, list(range(97, 101 + seq)))
    twins.propose([MoreDrafts(seq, 7) for seq in range(8)])
    twins.cycle([Ask(seq, 1, 1) for seq in range(8)])


def test_chains_end_where_the_context_does(twins: Twins) -> None:
    twins.prefill(0, [97 + i % 26 for i in range(OPTIONS.n_ctx - 4)])
    twins.prefill(1, list(b"abc"))
    twins.propose([MoreDrafts(0, 7), MoreDrafts(1, 7)])
    assert twins.n_drafts == 4 + 7


@pytest.fixture
def session(write_model: WriteModel) -> Iterator[NativeSession]:
    model = opened(write_model(SPARSE))
    session = NativeSession(model, OPTIONS)
    yield session
    session.close()
    model.close()


@pytest.mark.parametrize("n_seq", [1, 4])
def test_the_host_waits_once_for_a_chain(session: NativeSession, n_seq: int) -> None:
    for seq in range(n_seq):
        session.prefill(seq, list(b"abcabd"), session.open_sampler(GREEDY, None), use_mtp=True)
    for n in range(1, 8):
        session.propose([MoreDrafts(seq, n) for seq in range(n_seq)])
        _, times = session.cycle([Ask(seq, 2, 2) for seq in range(n_seq)])
        assert (times.n_draft_steps, times.n_draft_waits) == (1, 1)
        # a step without drafts leaves its pair to the next chain
        assert n * n_seq <= times.n_draft_rows <= (n + 1) * n_seq


def test_the_graph_of_a_chain_is_built_once(session: NativeSession) -> None:
    session.prefill(0, list(b"abcabdabc"), session.open_sampler(GREEDY, None), use_mtp=True)
    built = [session.cycle([Ask(0, 5, 5)])[1].draft_graph_built for _ in range(8)]
    assert built == [True] + [False] * 7


def test_a_step_needs_a_wait_for_each_draft(write_model: WriteModel) -> None:
    model = opened(write_model(SPARSE))
    session = NativeSession(model, replace(OPTIONS, draft_chain=False))
    session.prefill(0, list(b"abcabd"), session.open_sampler(GREEDY, None), use_mtp=True)
    _, times = session.cycle([Ask(0, 6, 6)])
    assert (times.n_draft_steps, times.n_draft_waits, times.n_draft_rows) == (5, 5, 5)
    session.close()
    model.close()


def test_the_engine_says_how_drafts_are_launched(write_model: WriteModel) -> None:
    path = write_model(TinySpec()).model
    with Engine(path, n_threads=1, n_ctx=256) as engine:
        assert any("one launch" in note for note in engine.dispatch.notes)
        expected = engine.generate("abcabd", max_tokens=24, verify_width=5).token_ids
    with Engine(path, n_threads=1, n_ctx=256, draft_chain=False) as engine:
        assert any("a launch of its own" in note and "draft_chain is off" in note for note in engine.dispatch.notes)
        assert engine.generate("abcabd", max_tokens=24, verify_width=5).token_ids == expected
