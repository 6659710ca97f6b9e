"""The command line of `lucebox-serve`: its own flags, and everything else for llama-server. Pure."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from pylucebox._build import DEMO_MODEL
from pylucebox._drafting import DEFAULT_DRAFT_VOCAB
from pylucebox._errors import InvalidArgumentError
from pylucebox._session_options import even_drafts_wanted
from pylucebox.width import MAX_WIDTH

__all__ = ["HELP", "ServeFlags", "parse_flags", "without_owned_variables"]

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8080
DEFAULT_DRAIN_S: Final = 25.0  # container managers commonly kill after 30 s

HELP: Final = f"""usage: lucebox-serve -m MODEL [flags of llama-server]

Serves a model over HTTP (OpenAI-compatible), with drafts of its MTP block where it has one. The text is that without
drafts. A supervisor keeps the port and starts the server again if it dies.

  -m, --model FILE       GGUF model, or its first split
  --demo                 the built-in model, one thread
  --mtp auto|off|FILE    where the MTP block comes from: 'auto' looks inside the model, then for mtp-*.gguf beside it
                         and in MTP/; FILE names the MTP file (default: auto)
  --verify-width W       rows of a verify step: 0 chooses what pays, 1 means no drafts, 2..{MAX_WIDTH} means W-1 drafts
                         (default: 0). A request may have its own: "verify_width": W, or "speculative": false
  --draft-vocab N|off|FILE  tokens that can be drafted: N of them, special ones first, then the lowest ids; all; or the
                         ids in FILE. Fewer make drafts cheaper (default: {DEFAULT_DRAFT_VOCAB})
  --spec auto|require    'auto' serves without drafts when they cannot be had and says why in /health, /props, /metrics
                         and each reply's timings; 'require' makes that an error (default: auto)
  --no-even-drafts       let replies that run together draft different numbers of tokens; then the model runs once for
                         each number in a pass (default: --even-drafts)
  --host ADDRESS         addresses to listen on, comma-separated, or a path ending in .sock (default: {DEFAULT_HOST})
  --port PORT            0 takes a free one (default: {DEFAULT_PORT})
  --tui                  show slots, speed and drafts on the terminal while it serves
  --insecure-open        listen beyond this machine without --api-key
  --drain-timeout S      seconds that running requests have left after SIGTERM (default: {DEFAULT_DRAIN_S:g})
  --until-eof            end, as after SIGTERM, when standard input is closed: for a program that starts it
  --usage                the flags of llama-server, all of which may be given as well
  --version              versions of package, llama.cpp and patches
"""

_DRAFTS: Final = "lucebox-serve sets it from --mtp and --verify-width"
_SOURCES: Final = "the MTP block is looked for beside a file; download the model and give its file with -m"
_REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "--spec-type",
            "--spec-default",
            "--model-draft",
            "-md",
            "--spec-draft-model",
            "--spec-draft-hf",
            "-hfd",
            "-hfrd",
            "--hf-repo-draft",
            "--spec-draft-n-max",
            "--spec-draft-n-min",
        ),
        _DRAFTS,
    ),
    **dict.fromkeys(
        ("--spec-draft-p-min", "--draft-p-min"),
        "the width policy decides after the drafts' probabilities where to stop",
    ),
    "--spec-draft-sampling": "a draft is taken if it is what the model samples itself, so the text does not change",
    **dict.fromkeys(
        ("--spec-synth-len", "--spec-synth-rates"), "made-up acceptance gives text that is not the model's"
    ),
    **dict.fromkeys(
        ("-hf", "-hfr", "--hf-repo", "-mu", "--model-url", "-dr", "--docker-repo"),
        _SOURCES,
    ),
    **dict.fromkeys(
        ("--models-dir", "--models-preset"),
        "several models at once are several servers; start lucebox-serve once for each",
    ),
    "--reuse-port": "the supervisor owns the port, so that two servers cannot take each other's requests",
}
_REFUSED_VARIABLES: Final = {
    "LLAMA_ARG_SPEC_TYPE": "--spec-type",
    "LLAMA_ARG_SPEC_DRAFT_MODEL": "--spec-draft-model",
    "LLAMA_ARG_SPEC_DRAFT_HF_REPO": "--spec-draft-hf",
    "LLAMA_ARG_SPEC_DRAFT_N_MAX": "--spec-draft-n-max",
    "LLAMA_ARG_SPEC_DRAFT_N_MIN": "--spec-draft-n-min",
    "LLAMA_ARG_SPEC_DRAFT_P_MIN": "--spec-draft-p-min",
    "LLAMA_ARG_SPEC_DRAFT_SAMPLING": "--spec-draft-sampling",
    "LLAMA_ARG_SPEC_SYNTH_LEN": "--spec-synth-len",
    "LLAMA_ARG_SPEC_SYNTH_RATES": "--spec-synth-rates",
    "LLAMA_ARG_HF_REPO": "--hf-repo",
    "LLAMA_ARG_MODEL_URL": "--model-url",
    "LLAMA_ARG_DOCKER_REPO": "--docker-repo",
    "LLAMA_ARG_MODELS_DIR": "--models-dir",
    "LLAMA_ARG_REUSE_PORT": "--reuse-port",
}
# llama-server would warn about these, since what they say is given to it as flags.
_OWNED_VARIABLES: Final = ("LLAMA_ARG_MODEL", "LLAMA_ARG_HOST", "LLAMA_ARG_PORT", "LLAMA_ARG_ENDPOINT_METRICS")

# What serves something that is no text after a prompt.
_NO_DRAFTS: Final = {
    "--embedding": "a server of embeddings generates nothing",
    "--embeddings": "a server of embeddings generates nothing",
    "--rerank": "a server that ranks generates nothing",
    "--reranking": "a server that ranks generates nothing",
}

# Left to itself llama-server lets its slots share their cells. What a slot computes then depends on which of them the
# others have, in the last bits, and with that its text now and then.
_SLOTS: Final = "4"
_SAYS_SLOTS: Final = ("-np", "--parallel", "-kvu", "--kv-unified", "--kv-unified-per-slot")
_SLOT_VARIABLES: Final = ("LLAMA_ARG_N_PARALLEL", "LLAMA_ARG_KV_UNIFIED", "LLAMA_ARG_KV_UNIFIED_PER_SLOT")

_VALUES: Final = {
    "-m": "model",
    "--model": "model",
    "--mtp": "mtp",
    "--verify-width": "verify_width",
    "--draft-vocab": "draft_vocab",
    "--spec": "spec",
    "--host": "host",
    "--port": "port",
    "--drain-timeout": "drain_s",
}
_SWITCHES: Final = {
    "--demo": "demo",
    "--insecure-open": "insecure_open",
    "--tui": "tui",
    "--until-eof": "until_eof",
    "--even-drafts": "even",
    "--no-even-drafts": "uneven",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFlags:
    """What the command line asks for.

    Attributes
    ----------
    model
        File of the model.
    mtp
        ``"auto"``, ``"off"`` or a path.
    verify_width
        0 adaptive, 1 no drafts, 2 to 8.
    draft_vocab
        Number of tokens that can be drafted, ``"off"`` for all, or a file of ids.
    spec
        ``"require"`` makes it an error when drafts cannot be had.
    even_drafts
        Whether replies that run together draft the same number of tokens.
    hosts, port
        Where to listen; port 0 is any.
    drain_s
        Seconds that running requests have left after SIGTERM.
    no_drafts
        Why what is served goes without drafts; empty if it does not.
    tls
        Whether the server speaks TLS.
    prefix
        What all paths begin with, as ``--api-prefix`` has it.
    tui
        Whether to show a live view.
    until_eof
        Whether to end when standard input is closed.
    api_key
        A key that the server takes; empty if it needs none, or they are in a file.
    rest
        Flags for llama-server.
    """

    model: str
    mtp: str = "auto"
    verify_width: int = 0
    draft_vocab: int | str = DEFAULT_DRAFT_VOCAB
    spec: Literal["auto", "require"] = "auto"
    even_drafts: bool = True
    hosts: tuple[str, ...] = (DEFAULT_HOST,)
    port: int = DEFAULT_PORT
    drain_s: float = DEFAULT_DRAIN_S
    no_drafts: str = ""
    tls: bool = False
    prefix: str = ""
    tui: bool = False
    until_eof: bool = False
    api_key: str = field(default="", repr=False)
    rest: tuple[str, ...] = ()


def parse_flags(arguments: Sequence[str], environment: Mapping[str, str]) -> ServeFlags:
    """Read the command line.

    Parameters
    ----------
    arguments
        Without the program's name.
    environment
        Variables of llama-server count as they do there: a flag goes before its variable.

    Raises
    ------
    InvalidArgumentError
        A value is out of range, or two flags contradict each other.
    """
    given, rest = _split(arguments)
    _refuse(rest, environment)

    demo = "demo" in given
    model = given.get("model") or ("" if demo else environment.get("LLAMA_ARG_MODEL", ""))
    if demo and model:
        raise _contradiction("--demo", model, "it brings its own model, so it goes without -m")
    if not demo and not model:
        raise InvalidArgumentError(
            argument="-m", value=None, reason="there is no model to serve", advice="Give its file with -m, or --demo."
        )
    if demo:
        model = str(DEMO_MODEL)
        rest = _with_default(rest, ("-t", "--threads"), "--threads", "1")
        rest = _with_default(rest, ("-tb", "--threads-batch"), "--threads-batch", "1")

    hosts = tuple(
        host.strip() for host in (given.get("host") or environment.get("LLAMA_ARG_HOST") or DEFAULT_HOST).split(",")
    )
    if not all(hosts):
        raise InvalidArgumentError(argument="--host", value=given.get("host"), allowed="addresses, comma-separated")
    port = _whole("--port", given.get("port") or environment.get("LLAMA_ARG_PORT") or str(DEFAULT_PORT), 0, 65535)
    if port == 0 and len(hosts) > 1:
        raise _contradiction("--port", port, "several addresses need a port that they share")

    keyed = any(flag in ("--api-key", "--api-key-file") for flag in rest) or any(
        environment.get(name) for name in ("LLAMA_API_KEY", "LLAMA_ARG_API_KEY_FILE")
    )
    open_hosts = [host for host in hosts if not _is_local(host)]
    if open_hosts and not keyed and "insecure_open" not in given:
        raise InvalidArgumentError(
            argument="--host",
            value=",".join(open_hosts),
            reason="others could use the model without a key",
            advice="Give --api-key KEY, or say --insecure-open.",
        )
    if "even" in given and "uneven" in given:
        raise _contradiction("--even-drafts", "yes", "--no-even-drafts is given as well")
    even = "even" in given or ("uneven" not in given and even_drafts_wanted(environment))

    mtp, width, spec, no_drafts = _spec_flags(given, rest, environment)
    if not no_drafts and not any(environment.get(name) for name in _SLOT_VARIABLES):
        rest = _with_default(rest, _SAYS_SLOTS, "--parallel", _SLOTS)
    tls = "--ssl-key-file" in rest or bool(environment.get("LLAMA_ARG_SSL_KEY_FILE"))
    if "tui" in given and (tls or "--no-slots" in rest or hosts[0].endswith(".sock")):
        raise _contradiction("--tui", "yes", "it asks the server over plain HTTP, /slots among others")
    return ServeFlags(
        model=model,
        mtp=mtp,
        verify_width=width,
        draft_vocab=_draft_vocab(given, mtp, width),
        spec=spec,
        even_drafts=even,
        no_drafts=no_drafts,
        hosts=hosts,
        port=port,
        drain_s=_seconds("--drain-timeout", given.get("drain_s", str(DEFAULT_DRAIN_S))),
        tls=tls,
        tui="tui" in given,
        until_eof="until_eof" in given,
        api_key=(_value_of(rest, "--api-key") or environment.get("LLAMA_API_KEY", "")).split(",")[0],
        prefix=_value_of(rest, "--api-prefix") or environment.get("LLAMA_ARG_API_PREFIX", ""),
        rest=tuple(rest),
    )


def without_owned_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a worker, which is told the same by flags."""
    return {name: value for name, value in environment.items() if name not in _OWNED_VARIABLES}


def _split(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Part our own flags from the rest."""
    given: dict[str, str] = {}
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag  # as llama-server does
        name = _VALUES.get(flag) or _SWITCHES.get(flag)
        if name is None or (equals and flag in _SWITCHES):
            rest.append(word)
            continue
        if name in given:
            raise _contradiction(flag, word, "it is given twice")
        if flag in _SWITCHES:
            given[name] = "yes"
        elif equals:
            given[name] = value
        else:
            following = next(words, None)
            if following is None:
                raise InvalidArgumentError(argument=flag, value=None, reason="its value is missing")
            given[name] = following
    return given, rest


def _refuse(rest: Iterable[str], environment: Mapping[str, str]) -> None:
    for word in rest:
        flag = word.replace("_", "-") if word.startswith("--") else word
        if flag in _REFUSED:
            raise _contradiction(flag, word, _REFUSED[flag])
    for name, flag in _REFUSED_VARIABLES.items():
        if environment.get(name):
            raise _contradiction(name, environment[name], _REFUSED[flag])


def _spec_flags(
    given: Mapping[str, str], rest: Sequence[str], environment: Mapping[str, str]
) -> tuple[str, int, Literal["auto", "require"], str]:
    """Return --mtp, --verify-width, --spec, and why what is served goes without drafts."""
    mtp = given.get("mtp", "auto")
    if not mtp:
        raise InvalidArgumentError(argument="--mtp", value=mtp, allowed="auto, off, or the path of an MTP file")
    width = _whole("--verify-width", given.get("verify_width", "0"), 0, MAX_WIDTH)
    asked = given.get("spec", "auto")
    if asked not in ("auto", "require"):
        raise InvalidArgumentError(argument="--spec", value=asked, allowed="auto or require")

    reasons = [reason for flag, reason in _NO_DRAFTS.items() if flag in rest]
    reasons += [
        _NO_DRAFTS[flag]
        for name, flag in (("LLAMA_ARG_EMBEDDINGS", "--embedding"), ("LLAMA_ARG_RERANKING", "--rerank"))
        if environment.get(name)
    ]
    if mtp == "off" and width > 1:
        raise _contradiction("--mtp", mtp, f"--verify-width {width} asks for drafts")
    if mtp not in ("auto", "off") and width == 1:
        raise _contradiction("--mtp", mtp, "--verify-width 1 asks for no drafts")
    spec: Literal["auto", "require"] = "require" if asked == "require" else "auto"
    if spec == "require":
        if mtp == "off" or width == 1:
            raise _contradiction(
                "--spec", spec, f"{'--mtp off' if mtp == 'off' else '--verify-width 1'} asks for no drafts"
            )
        if reasons:
            raise _contradiction("--spec", spec, reasons[0])
    if reasons and (width > 1 or mtp not in ("auto", "off")):
        raise _contradiction("--verify-width" if width > 1 else "--mtp", width or mtp, reasons[0])
    return mtp, width, spec, reasons[0] if reasons else ""


def _draft_vocab(given: Mapping[str, str], mtp: str, width: int) -> int | str:
    text = given.get("draft_vocab")
    if text is None:
        return DEFAULT_DRAFT_VOCAB
    if not text:
        raise InvalidArgumentError(
            argument="--draft-vocab", value=text, allowed="a number, off, or a file of token ids"
        )
    if text != "off" and (mtp == "off" or width == 1):
        flag = "--mtp off" if mtp == "off" else "--verify-width 1"
        raise _contradiction("--draft-vocab", text, f"{flag} asks for no drafts")
    return _whole("--draft-vocab", text, 1, 2**24) if text.isascii() and text.isdigit() else text


def _contradiction(argument: str, value: object, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(argument=argument, value=value, reason=reason, advice="Leave one of them out.")


def _whole(flag: str, text: str, low: int, high: int) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else -1
    if not low <= number <= high:
        raise InvalidArgumentError(argument=flag, value=text, allowed=f"a whole number from {low} to {high}")
    return number


def _seconds(flag: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 86400:  # also false for nan
        raise InvalidArgumentError(argument=flag, value=text, allowed="seconds, from 0 to 86400")
    return number


def _is_local(host: str) -> bool:
    if host.endswith(".sock") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name: where it leads is not ours to know
        return False


def _value_of(rest: Sequence[str], flag: str) -> str:
    return next((rest[i + 1] for i, word in enumerate(rest[:-1]) if word == flag), "")


def _with_default(rest: list[str], names: tuple[str, ...], flag: str, value: str) -> list[str]:
    said = {word.replace("_", "-") for word in rest}
    return rest if said.intersection(names) else [*rest, flag, value]
