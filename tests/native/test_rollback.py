"""What rejected drafts leave behind: nothing, in any byte of the trunk's state."""

from __future__ import annotations

import struct

import pytest

from pylucebox._model import Model, ModelOptions
from pylucebox._native_session import NativeSession, SessionOptions
from pylucebox._sampling import SamplingParams
from pylucebox._session import Ask
from pylucebox.testing import TinySpec, write_tiny_model

OPTIONS = SessionOptions(n_ctx=512, n_ubatch=128, max_width=8)
# struct state_header of state.cpp: magic, version, n_past, last, use_mtp, n_waiting, n_embd_out, n_vocab, two sizes,
# checksum
HEADER = struct.Struct("<IIiiIIIIQQQ")


@pytest.fixture(scope="module", params=["mixed", "random"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Models whose drafts hold for every number of places, and hardly ever."""
    path = tmp_path_factory.mktemp("rollback") / "m.gguf"
    return Model(ModelOptions(path=write_tiny_model(path, TinySpec(kind=request.param)).model, mtp_in_file=True))


def trunk_state(state: bytes) -> bytes:
    """Return attention, index and pooled keys, and recurrent states, without what belongs to the MTP block."""
    *_, n_waiting, n_embd_out, _, trunk_bytes, _, _ = HEADER.unpack_from(state)
    begin = HEADER.size + n_waiting * (8 + 4 * n_embd_out)
    return state[begin : begin + trunk_bytes]


def generate(model: Model, widths: tuple[int, ...], n_tokens: int) -> tuple[list[int], bytes, set[int]]:
    """Return tokens, the trunk's state, and how many drafts held in the cycles."""
    session = NativeSession(model, OPTIONS)
    ids = model.tokenize("One, two, three and four.", add_special=False, parse_special=True)
    sampler = session.open_sampler(SamplingParams(temperature=0.9, seed=3, sampler_rng="mt19937"), None)
    token, _ = session.prefill(0, ids, sampler, use_mtp=widths != (1,))
    tokens, held = [token], set()
    cycle = 0
    while len(tokens) < n_tokens:
        (result,), _ = session.cycle([Ask(0, widths[cycle % len(widths)], n_tokens - len(tokens))])
        tokens += result.tokens
        held.add(result.n_accepted)
        cycle += 1
    state = trunk_state(session.state_save(0))
    session.close()
    return tokens, state, held


@pytest.mark.parametrize("n_tokens", [9, 24, 61])
@pytest.mark.parametrize("widths", [(2,), (4,), (8,), (8, 1, 3, 5)], ids=str)
def test_state_after_drafts_is_that_of_a_session_that_never_drafted(
    model: Model, widths: tuple[int, ...], n_tokens: int
) -> None:
    plain_tokens, plain_state, _ = generate(model, (1,), n_tokens)
    tokens, state, held = generate(model, widths, n_tokens)
    assert tokens == plain_tokens
    assert state == plain_state
    assert 0 in held, "no draft was rejected, so nothing was rolled back"


def test_continuing_from_a_saved_state_gives_the_same_tokens(model: Model) -> None:
    session = NativeSession(model, OPTIONS)
    ids = model.tokenize("One, two, three and four.", add_special=False, parse_special=True)
    greedy = SamplingParams(temperature=0, seed=0)
    session.prefill(0, ids, session.open_sampler(greedy, None), use_mtp=True)

    def more(n_cycles: int) -> list[list[int]]:
        return [session.cycle([Ask(0, 6, 100)])[0][0].tokens for _ in range(n_cycles)]

    more(5)  # the last of these has usually left a rollback pending
    state = session.state_save(0)
    expected = more(12)
    session.clear(0)
    session.state_load(0, state, session.open_sampler(greedy, None))
    assert more(12) == expected
    session.close()
