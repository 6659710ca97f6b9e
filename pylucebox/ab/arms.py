"""Arms from the command line: named settings of the engine, other builds, and servers."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn

from pylucebox._errors import InvalidArgumentError
from pylucebox.ab.records import Arm

__all__ = ["ALL_WIDTHS", "NAMED", "named_arm", "parse_arm", "parse_names", "sentinel_arm"]

ALL_WIDTHS: Final = tuple(range(1, 9))
NAMED: Final = ("off", *(f"k{n}" for n in range(1, 8)), "adaptive")
"""Settings of the engine that have a name: no drafts, so many drafts, or as the engine chooses."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,39}")
_FORMS: Final = (
    "NAME=SETTING [--threads N] [--device D] ... [--python FILE] [--site DIR] [--env KEY=VALUE],"
    " NAME=server [--env KEY=VALUE] [--api-model M] COMMAND..., or NAME=url URL [--api-model M];"
    f" SETTING is one of {', '.join(NAMED)}"
)


def named_arm(name: str, setting: str, common: Mapping[str, Any]) -> Arm:
    """Return a named setting of the engine.

    Parameters
    ----------
    name
        Name of the arm.
    setting
        One of `NAMED`. Settings with drafts require them: an engine that quietly made none would be measured
        against itself.
    common
        Arguments of `pylucebox.Engine` that all arms share.

    Raises
    ------
    InvalidArgumentError
        There is no such setting.
    """
    if setting not in NAMED:
        raise InvalidArgumentError(argument="arms", value=setting, allowed=", ".join(NAMED))
    if setting == "off":
        return Arm(name=name, kind="engine", widths=(1,), options={**common, "mtp": "off", "verify_width": 1})
    if setting == "adaptive":
        return Arm(
            name=name, kind="engine", widths=ALL_WIDTHS, options={**common, "verify_width": 0, "spec": "require"}
        )
    width = int(setting[1:]) + 1
    return Arm(name=name, kind="engine", widths=(width,), options={**common, "verify_width": width, "spec": "require"})


def parse_names(text: str, common: Mapping[str, Any]) -> list[Arm]:
    """Read ``off,k3,adaptive``.

    Raises
    ------
    InvalidArgumentError
        A name is no setting.
    """
    return [named_arm(name, name, common) for name in (part.strip() for part in text.split(",")) if name]


class _ArmParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidArgumentError(argument="arm", value=message, allowed=_FORMS)


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither on nor off")
    return text == "on"


def _draft_vocab(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdecimal() else text


_ENGINE_FLAGS: Final[Mapping[str, dict[str, Any]]] = {
    "--threads": {"dest": "n_threads", "type": int},
    "--threads-batch": {"dest": "n_threads_batch", "type": int},
    "--device": {"dest": "device"},
    "--n-gpu-layers": {"dest": "n_gpu_layers", "type": int},
    "--n-ubatch": {"dest": "n_ubatch", "type": int},
    "--flash-attn": {"dest": "flash_attn", "type": _switch},
    "--cache-type-k": {"dest": "cache_type_k"},
    "--cache-type-v": {"dest": "cache_type_v"},
    "--mtp": {"dest": "mtp"},
    "--hidden-norm": {"dest": "hidden_norm"},
    "--draft-vocab": {"dest": "draft_vocab", "type": _draft_vocab},
    "--draft-chain": {"dest": "draft_chain", "type": _switch},
    "--coupled-drafts": {"dest": "coupled_drafts", "type": _switch},
    "--mtp-kv-in-trunk": {"dest": "mtp_kv_in_trunk", "type": _switch},
    "--n-kept-graphs": {"dest": "n_kept_graphs", "type": int},
}


def _parser() -> _ArmParser:
    return _ArmParser(prog="--arm", add_help=False, allow_abbrev=False)


def parse_arm(text: str, common: Mapping[str, Any]) -> Arm:
    """Read the value of ``--arm``.

    Parameters
    ----------
    text
        ``NAME=ARGS``, where ARGS is split like a shell does.
    common
        Arguments of `pylucebox.Engine` that arms share unless they say otherwise.

    Raises
    ------
    InvalidArgumentError
        It has none of the forms.
    """
    name, equals, rest = text.partition("=")
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise InvalidArgumentError(argument="arm", value=f"{text} ({error})", allowed=_FORMS) from None
    if not equals or not _NAME.fullmatch(name) or not words:
        raise InvalidArgumentError(argument="arm", value=text, allowed=_FORMS)
    if words[0] == "server":
        return _server(name, words[1:])
    if words[0] == "url":
        return _url(name, words[1:])
    return _engine(name, words[0], words[1:], common)


def _engine(name: str, setting: str, words: Sequence[str], common: Mapping[str, Any]) -> Arm:
    parser = _parser()
    for flag, settings in _ENGINE_FLAGS.items():
        parser.add_argument(flag, default=argparse.SUPPRESS, **settings)
    parser.add_argument("--python")
    parser.add_argument("--site")
    parser.add_argument("--env", action="append", type=_pair, default=[])
    found = vars(parser.parse_args(list(words)))
    python, site, env = found.pop("python"), found.pop("site"), dict(found.pop("env"))
    arm = named_arm(name, setting, common)
    return replace(arm, options={**arm.options, **found}, python=python, site=site, env=env)


def _server(name: str, words: Sequence[str]) -> Arm:
    env: dict[str, str] = {}
    api_model = None
    rest = list(words)
    while rest and rest[0] in ("--env", "--api-model"):
        if len(rest) < 2:
            raise InvalidArgumentError(argument="arm", value=" ".join(words), allowed=_FORMS)
        flag, value = rest[0], rest[1]
        rest = rest[2:]
        if flag == "--env":
            key, equals, content = value.partition("=")
            if not equals:
                raise InvalidArgumentError(argument="arm", value=value, allowed="--env KEY=VALUE")
            env[key] = content
        else:
            api_model = value
    if not rest:
        raise InvalidArgumentError(argument="arm", value=f"{name}=server", allowed=_FORMS)
    if not any("{port}" in word for word in rest):
        allowed = "a command line with {port} where the server is told its port"
        raise InvalidArgumentError(argument="arm", value=" ".join(rest), allowed=allowed)
    return Arm(name=name, kind="server", command=tuple(rest), env=env, api_model=api_model)


def _url(name: str, words: Sequence[str]) -> Arm:
    parser = _parser()
    parser.add_argument("url")
    parser.add_argument("--api-model")
    found = parser.parse_args(list(words))
    return Arm(name=name, kind="url", url=found.url, api_model=found.api_model)


def sentinel_arm(arms: Sequence[Arm], common: Mapping[str, Any]) -> Arm:
    """Return the arm that runs the sentinel: an engine of this build without drafts.

    Where no arm is an engine of ours, the machine that is measured may be another one; then it is the first arm.
    """
    if any(arm.kind == "engine" for arm in arms):
        return named_arm("sentinel", "off", common)
    return replace(arms[0], name="sentinel")
