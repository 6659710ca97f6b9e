"""Servers that several tests share, and the models they serve."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

import pylucebox

# Let the tests import their helper module, whichever import mode pytest runs in.
sys.path.insert(0, str(Path(__file__).parent))

from _server import Serve, Server, StartServe, StartServer, StartWorker, Worker

AnyServer = TypeVar("AnyServer", bound=Server)
FOR_CLIENTS = ("--ctx-size", 4096, "--parallel", 4, "--jinja")
DEMO_DIR = Path(pylucebox.__file__).parent / "demo_model"


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """File of the built-in model."""
    return next(DEMO_DIR.glob("*.gguf"))


@pytest.fixture(scope="session")
def demo_mtp() -> Path:
    """File of its MTP block."""
    return next(DEMO_DIR.glob("MTP/*.gguf"))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Start servers, each once for its arguments, and see that all end in good order."""
    yield from _starter(Server, tmp_path_factory)


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServe]:
    """Start `lucebox-serve`, each once for its arguments, and see that all end in good order."""
    yield from _starter(Serve, tmp_path_factory)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartWorker]:
    """Start workers, each once for its arguments, and see that all end in good order."""
    yield from _starter(Worker, tmp_path_factory)


# Of tests that talk to a server as clients do. Modules with needs of their own have fixtures of the same name.


@pytest.fixture(scope="module")
def server(serve: StartServe, demo_model: Path) -> Serve:
    """A server with drafts."""
    return serve(demo_model, *FOR_CLIENTS)


@pytest.fixture(scope="module")
def plain_server(serve: StartServe, demo_model: Path) -> Serve:
    """The same without."""
    return serve(demo_model, *FOR_CLIENTS, "--mtp", "off")


def _starter(kind: type[AnyServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., AnyServer]]:
    running: dict[tuple[object, ...], AnyServer] = {}

    def one(model: Path, *arguments: object) -> AnyServer:
        key = (model, *arguments)
        if key not in running:
            running[key] = kind(model, tmp_path_factory.mktemp("server") / "log", *map(str, arguments))
        return running[key]

    yield one
    for server in running.values():
        with server:
            pass
