"""Text assembly: whole characters, stop strings across token borders, and which token ends a completion."""

from __future__ import annotations

import random

import pytest

from pylucebox._errors import InvalidArgumentError
from pylucebox._text import IncrementalDecoder, StopMatcher, TextAssembler

WORDS = ["a", "ä", "€", "😀", "\n", "stop"]


def pieces(data: bytes, rng: random.Random) -> list[bytes]:
    """Cut bytes at random places; empty pieces occur, as tokens without text do."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(6)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def run(stops: list[str], tokens: list[bytes]) -> tuple[str, TextAssembler, list[str]]:
    assembler = TextAssembler(stops)
    shown = [assembler.push(token) for token in tokens]
    shown.append(assembler.finish())
    return "".join(shown), assembler, shown


# ---- decoder


def test_no_piece_splits_a_character() -> None:
    decoder = IncrementalDecoder()
    assert [decoder.feed(bytes([byte])) for byte in "é😀".encode()] == ["", "é", "", "", "", "😀"]


def test_character_left_unfinished_becomes_one_replacement_character() -> None:
    decoder = IncrementalDecoder()
    assert decoder.feed("x😀".encode()[:4]) == "x"
    assert decoder.flush() == "\ufffd"
    assert decoder.feed(b"y") == "y"  # nothing of the old text is left


def test_invalid_bytes_are_replaced_at_once() -> None:
    assert IncrementalDecoder().feed(b"a\xffb") == "a\ufffdb"


def test_pieces_joined_equal_decoding_at_once() -> None:
    rng = random.Random(1)
    for _ in range(500):
        data = "".join(rng.choices(WORDS, k=4)).encode() + bytes(rng.choices(range(256), k=3))
        decoder = IncrementalDecoder()
        joined = "".join(decoder.feed(piece) for piece in pieces(data, rng)) + decoder.flush()
        assert joined == data.decode("utf-8", "replace")


# ---- stop strings


def test_text_that_may_begin_a_stop_string_is_held_back_and_then_released() -> None:
    matcher = StopMatcher(["</end>"])
    assert matcher.push("text</e") == "text"
    assert matcher.push("n") == ""
    assert matcher.push("!") == "</en!"
    assert matcher.matched is None


def test_longest_possible_beginning_is_held_back() -> None:
    matcher = StopMatcher(["abcabd"])
    assert matcher.push("xabcab") == "x"
    assert matcher.push("c") == "abc"  # "abc" may still begin it
    assert matcher.push("abd") == ""
    assert matcher.matched == "abcabd"


def test_earliest_stop_string_wins_whatever_the_order_given() -> None:
    for stops in (["lo", "hel"], ["hel", "lo"]):
        matcher = StopMatcher(stops)
        assert matcher.push("xhello") == "x"
        assert matcher.matched == "hel"


def test_of_stop_strings_that_begin_together_the_longest_wins() -> None:
    for stops in (["\n", "\n\n"], ["\n\n", "\n"]):
        matcher = StopMatcher(stops)
        assert matcher.push("a\n\nb") == "a"
        assert matcher.matched == "\n\n"


def test_after_a_match_nothing_more_is_shown() -> None:
    matcher = StopMatcher(["X"])
    assert matcher.push("aXb") == "a"
    assert matcher.push("c") == ""
    assert matcher.flush() == ""


def test_text_held_back_at_the_end_is_no_stop_string() -> None:
    matcher = StopMatcher(["abc"])
    assert matcher.push("ab") == ""
    assert matcher.flush() == "ab"


def test_one_string_is_one_stop_not_its_letters() -> None:
    assert StopMatcher("ab").push("a-b ab") == "a-b "


@pytest.mark.parametrize("stops", [[""], ["a", ""], [5], [b"a"]])
def test_stop_strings_that_could_never_or_always_match_are_refused(stops: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        StopMatcher(stops)
    assert caught.value.argument == "stop"


# ---- both together


def test_stop_string_across_tokens_cuts_text_and_counts_the_token_that_completed_it() -> None:
    text, assembler, _ = run(["END"], [b"ab", b"cE", b"N", b"D!", b"later"])
    assert text == "abc"
    assert assembler.stop_sequence == "END"
    assert assembler.n_tokens == 4


def test_stop_string_may_end_inside_a_character_split_over_tokens() -> None:
    euro = "€".encode()
    text, assembler, _ = run(["€!"], [b"5 ", euro[:1], euro[1:], b"!?", b"x"])
    assert text == "5 "
    assert assembler.n_tokens == 4


def test_generation_ends_at_the_first_token_that_completes_any_stop_string() -> None:
    text, assembler, _ = run(["\n\n", "\n"], [b"a", b"\n", b"\n"])
    assert (text, assembler.stop_sequence, assembler.n_tokens) == ("a", "\n", 2)


def test_without_a_stop_all_tokens_count() -> None:
    text, assembler, _ = run(["zzz"], [b"a", b"", b"zz"])
    assert (text, assembler.n_tokens, assembler.stopped) == ("azz", 3, False)


def test_replacement_character_of_the_last_token_can_complete_a_stop_string() -> None:
    text, assembler, _ = run(["\ufffd"], [b"a", "€".encode()[:2]])
    assert (text, assembler.stopped) == ("a", True)


def test_result_equals_a_search_in_the_whole_text() -> None:
    rng = random.Random(2)
    for _ in range(2000):
        stops = ["".join(rng.choices("abä", k=rng.randrange(1, 4))) for _ in range(rng.randrange(3))]
        data = "".join(rng.choices("abä", k=12)).encode()
        tokens = pieces(data, rng)
        text, assembler, shown = run(stops, tokens)

        ends = []  # token at which each occurrence is complete, where it begins, its length
        for n in range(1, len(tokens) + 1):
            so_far = b"".join(tokens[:n]).decode("utf-8", "ignore")
            ends += [(n, so_far.find(stop), -len(stop)) for stop in stops if stop in so_far]
        if ends:
            n, begin, length = min(ends)
            whole = data.decode()
            assert text == whole[:begin]
            assert assembler.n_tokens == n
            assert assembler.stop_sequence == whole[begin : begin - length]
        else:
            assert text == data.decode()
            assert not assembler.stopped
        # Nothing shown earlier had to be taken back.
        assert all(text.startswith("".join(shown[:n])) for n in range(len(shown)))
