"""Turn token bytes into text that is safe to show: whole characters only, and nothing that may be a stop string.

What a completion contains
--------------------------
Stop strings are looked for after each token, never after each cycle, so a request ends at the same token whatever the
verify width is. The token that completes a stop string is the last one of `token_ids`; the text ends right before the
stop string, which is not part of it. If several stop strings are complete after the same token, the one that begins
first counts; among those that begin at the same place, the longest.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from pylucebox._errors import InvalidArgumentError

__all__ = ["IncrementalDecoder", "StopMatcher", "TextAssembler"]


class IncrementalDecoder:
    """UTF-8 decoder for byte pieces that may end inside a character.

    An unfinished character at the end is held back until more bytes decide it. Bytes that can never become a character
    turn into U+FFFD, so the pieces joined are always what decoding all bytes at once with ``errors="replace"`` gives.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """Return the characters that are complete now."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Return what was held back as U+FFFD, and start afresh."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class StopMatcher:
    """Finds stop strings in a stream of text pieces.

    Parameters
    ----------
    stops
        Strings that end the text; may be empty.

    Attributes
    ----------
    matched
        The stop string found, or None.

    Raises
    ------
    InvalidArgumentError
        A stop string is empty or not a string.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        checked = [_checked(stop) for stop in ((stops,) if isinstance(stops, str) else stops)]
        # Longest first, so that of two stops that begin at one place the longer one is met first.
        self._stops = tuple(sorted(set(checked), key=lambda stop: (-len(stop), stop)))
        self._max_held = len(self._stops[0]) - 1 if self._stops else 0
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take a piece of text and return what is now safe to show.

        Once a stop string has been found everything further is dropped.
        """
        if self.matched is not None:
            return ""
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.matched = min(found, key=lambda match: match[0])
            self._held = ""
            return text[:at]
        n_held = self._n_undecided(text)
        cut = len(text) - n_held
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """Return what was held back: no more text comes, so it is no stop string."""
        text, self._held = self._held, ""
        return text

    def _n_undecided(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        for n in range(min(self._max_held, len(text)), 0, -1):
            end = text[-n:]
            if any(stop.startswith(end) for stop in self._stops):
                return n
        return 0


def _checked(stop: object) -> str:
    if isinstance(stop, str) and stop:
        return stop
    raise InvalidArgumentError(argument="stop", value=stop, allowed="a non-empty string, or several")


class TextAssembler:
    """Decoder and stop matcher together, fed token by token.

    Parameters
    ----------
    stops
        Stop strings; see `StopMatcher`.

    Attributes
    ----------
    n_tokens
        Tokens that belong to the completion so far. After a stop it counts the token that completed the stop string and
        none after it, so a list of tokens can be cut to this length.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._decoder = IncrementalDecoder()
        self._matcher = StopMatcher(stops)
        self.n_tokens = 0

    @property
    def stop_sequence(self) -> str | None:
        """The stop string found, or None."""
        return self._matcher.matched

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; further tokens are ignored."""
        return self._matcher.matched is not None

    def push(self, token_bytes: bytes) -> str:
        """Take the bytes of the next token.

        Returns
        -------
        str
            Text that can be shown now. Joined over all calls and `finish` it is the text of the completion.
        """
        if self.stopped:
            return ""
        self.n_tokens += 1
        return self._matcher.push(self._decoder.feed(token_bytes))

    def finish(self) -> str:
        """End the text and return what was held back; after a stop string that is nothing."""
        if self.stopped:
            return ""
        return self._matcher.push(self._decoder.flush()) + self._matcher.flush()
