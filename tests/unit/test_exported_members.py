"""The public names are what `__all__` says, and importing them is cheap in what it brings along."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pylucebox


def test_all_lists_every_public_name_once_and_sorted() -> None:
    public = {
        name
        for name, value in ((name, getattr(pylucebox, name)) for name in dir(pylucebox))
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public == set(pylucebox.__all__) - {"__version__"}
    assert len(pylucebox.__all__) == len(set(pylucebox.__all__))


def test_public_names_say_that_they_come_from_the_package() -> None:
    modules = {getattr(getattr(pylucebox, name), "__module__", "pylucebox") for name in pylucebox.__all__}
    assert modules == {"pylucebox"}


def test_every_error_is_public() -> None:
    from pylucebox import _errors

    assert set(_errors.__all__) <= set(pylucebox.__all__)


def test_names_are_loaded_at_their_first_use() -> None:
    code = (
        "import sys, pylucebox; "
        "before = {name for name in sys.modules if name.startswith('pylucebox')}; "
        "assert before == {'pylucebox', 'pylucebox._version'}, before; "
        "assert pylucebox.Engine is pylucebox.Engine; "
        "from pylucebox import SamplingParams; "
        "from pylucebox import *; "
        "assert Engine is pylucebox.Engine; "
        "assert not hasattr(pylucebox, 'engine'); "
        "assert not hasattr(pylucebox, '_nothing')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_import_starts_no_thread_and_loads_nothing_native_or_heavy() -> None:
    code = (
        "import sys, threading, pylucebox; pylucebox.Engine; "
        "heavy = {'numpy', 'rich', 'cffi', '_cffi_backend', 'pylucebox._native', 'importlib.resources'}; "
        "print(threading.active_count(), sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split(maxsplit=1) == ["1", "[]\n"]
