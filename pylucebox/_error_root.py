"""The root of the errors; the tree is in `pylucebox._errors`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

__all__ = ["LuceboxError"]


def _restore(cls: type[LuceboxError], message: str, state: dict[str, Any]) -> LuceboxError:
    """Rebuild an unpickled error without running its constructor, whose arguments differ per class."""
    # Not cls.__new__: with two bases the one found first in the MRO need not be the one that lays the object out.
    new = OSError.__new__ if issubclass(cls, OSError) else Exception.__new__
    error: LuceboxError = new(cls, message)
    error.args = (message,)
    for name, value in state.items():
        setattr(error, name, value)
    return error


class LuceboxError(Exception):
    """Root of the tree; catch it to catch everything this package raises on purpose.

    Parameters
    ----------
    failed
        What failed, without a full stop: ``cannot open the model 'x.gguf'``.
    seen
        What was found instead of what was needed.
    advice
        What the reader can do; None takes the advice of the class.
    native_log
        Last lines of the native log, oldest first.
    """

    default_advice: ClassVar[str] = ""

    failed: str
    seen: str
    advice: str
    native_log: tuple[str, ...]

    def __init__(
        self, failed: str, *, seen: str = "", advice: str | None = None, native_log: Iterable[str] = ()
    ) -> None:
        self.failed = failed
        self.seen = seen
        self.advice = self.default_advice if advice is None else advice
        self.native_log = tuple(native_log)
        super().__init__(self._compose())

    def _compose(self) -> str:
        text = f"{self.failed}: {self.seen}" if self.seen else self.failed
        if self.advice:
            text = f"{text.rstrip('.')}. {self.advice}"
        if self.native_log:
            text = "\n".join([text, "native log:", *(f"  {line}" for line in self.native_log)])
        return text

    @property
    def message(self) -> str:
        """The whole text, as `str()` gives it."""
        return str(self.args[0])

    def __str__(self) -> str:
        # OSError would otherwise print "[Errno 2] None: path" in place of the message.
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        state = dict(self.__dict__)
        if isinstance(self, OSError):  # these two live in C slots, not in __dict__
            state |= {"errno": self.errno, "filename": self.filename}
        return _restore, (type(self), self.message, state)
