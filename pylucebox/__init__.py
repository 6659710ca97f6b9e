"""Generate text with Qwen3.8-Flash-Next and its own MTP block, on a patched llama.cpp.

Start with `Engine`. Importing the package loads next to nothing: the first use of a name loads the Python code, and
opening an engine loads the native library. A command that starts can so be interrupted from its first moment on.
"""

import typing as _typing

from pylucebox._version import __version__ as __version__

if _typing.TYPE_CHECKING:
    from pylucebox._public import *  # noqa: F403


def __getattr__(name: str) -> _typing.Any:
    if name == "__all__" or not name.startswith("_"):
        from pylucebox import _public  # noqa: PLC0415 - the point of it all

        globals().update({public: getattr(_public, public) for public in ("__all__", *_public.__all__)})
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from pylucebox import _public  # noqa: PLC0415

    return sorted({*globals(), *_public.__all__})
