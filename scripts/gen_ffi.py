#!/usr/bin/env python3
"""Write the C source of the extension ``pylucebox._native`` from ``lucebox.h``.

The declarations are taken from the header, so there is one place to edit. The result is committed: building the
package needs no cffi. ``--check`` writes nothing and fails when the committed file is not what the header gives.

The text depends on the cffi version, which is therefore pinned in ``CFFI_VERSION``.
"""

from __future__ import annotations

import argparse
import difflib
import io
import re
import sys
from pathlib import Path

import cffi

CFFI_VERSION = "2.1.1"
MODULE_NAME = "pylucebox._native"
NATIVE_DIR = Path(__file__).resolve().parent.parent / "pylucebox" / "native"

_CONDITIONAL_OPEN = re.compile(r"#\s*(?:if|ifdef|ifndef)\b")
_CONDITIONAL_CLOSE = re.compile(r"#\s*endif\b")
_CONSTANT = re.compile(r"#\s*define\s+(LUCEBOX_MAX_\w+)\s+(\d+)\s*$")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


def declarations(header: str) -> str:
    """Return the declarations of `header` in the form ``cffi.FFI.cdef`` takes.

    Parameters
    ----------
    header
        Text of ``lucebox.h``. Its include guard is the only conditional whose content is kept: whatever stands in
        a nested conditional is there for the compiler (export macros, ``extern "C"``).

    Raises
    ------
    ValueError
        The conditionals are not balanced.
    """
    kept: list[str] = []
    depth = 0
    for line in _COMMENT.sub("", header).splitlines():
        text = line.strip()
        if _CONDITIONAL_OPEN.match(text):
            depth += 1
        elif _CONDITIONAL_CLOSE.match(text):
            depth -= 1
        elif depth == 1 and text:
            constant = _CONSTANT.match(text)
            if constant:
                kept.append(f"#define {constant[1]} {constant[2]}")
            elif not text.startswith("#"):
                kept.append(re.sub(r"\bLUCEBOX_API\s+", "", line.rstrip()))
    if depth != 0:
        msg = f"lucebox.h leaves {depth} conditional(s) open"
        raise ValueError(msg)
    return "\n".join(kept) + "\n"


def extension_source(native_dir: Path) -> str:
    """Return the C source of the extension for the header and inputs in `native_dir`."""
    builder = cffi.FFI()
    builder.cdef(declarations((native_dir / "lucebox.h").read_text(encoding="utf-8")))
    builder.cdef((native_dir / "ffi_cdef.h").read_text(encoding="utf-8"))
    prelude = (native_dir / "ffi_source.c").read_text(encoding="utf-8")
    # The last keyword keeps cffi from announcing the file on stdout.
    builder.set_source(MODULE_NAME, prelude, py_limited_api=True, compiler_verbose=0)
    generated = io.StringIO()
    builder.emit_c_code(generated)
    return generated.getvalue()


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit status: 1 when the committed file is stale."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare with the committed file and write nothing")
    parser.add_argument(
        "--native-dir", type=Path, default=NATIVE_DIR, help="folder of lucebox.h (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    if cffi.__version__ != CFFI_VERSION:
        found_version = cffi.__version__
        print(
            f"gen_ffi needs cffi {CFFI_VERSION}, found {found_version}: pip install cffi=={CFFI_VERSION}",
            file=sys.stderr,
        )
        return 1
    target: Path = options.native_dir / "_native.c"
    wanted = extension_source(options.native_dir)
    if not options.check:
        target.write_text(wanted, encoding="utf-8")
        return 0
    found = target.read_text(encoding="utf-8") if target.exists() else ""
    if found == wanted:
        return 0
    diff = difflib.unified_diff(found.splitlines(), wanted.splitlines(), "committed", "generated", lineterm="", n=1)
    print(f"{target.name} does not match lucebox.h; run scripts/gen_ffi.py", file=sys.stderr)
    print("\n".join(list(diff)[:40]), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
