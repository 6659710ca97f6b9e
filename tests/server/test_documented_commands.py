"""What README.md and docs/serve.md tell to type, typed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from _server import Serve, StartServe

from pylucebox import Engine

ROOT = Path(__file__).parents[2]
ANSWER = re.compile(r"^```\n(\{.*\})\n```$", re.MULTILINE)
CURL = re.compile(r"^curl .*$", re.MULTILINE)
DOCUMENTS = [ROOT / "README.md", ROOT / "docs" / "serve.md"]


def curls(document: Path) -> list[str]:
    return CURL.findall(document.read_text("utf-8"))


@pytest.fixture(scope="module")
def server(serve: StartServe, demo_model: Path) -> Serve:
    return serve(demo_model)


def output(server: Serve, command: str) -> str:
    words = [word.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}") for word in shlex.split(command)]
    done = subprocess.run([*words, "--silent", "--show-error"], capture_output=True, check=True, timeout=60)
    return done.stdout.decode()


def run(server: Serve, command: str) -> Any:
    return json.loads(output(server, command))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_curl_of_the_documents(server: Serve, document: Path) -> None:
    commands = curls(document)
    assert commands
    for command in commands:
        reply = run(server, command)
        choice = reply["choices"][0]
        assert (choice["finish_reason"], choice["message"]["role"]) == ("stop", "assistant")
        assert choice["message"]["content"]
        assert reply["timings"]["speculative"] == "active"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_answer_of_the_readme(server: Serve) -> None:
    """The first curl prints what stands below it, where it leaves nothing out."""
    readme = (ROOT / "README.md").read_text("utf-8")
    command = curls(ROOT / "README.md")[0]
    found = ANSWER.search(readme, readme.index(command))
    assert found is not None
    with Engine.demo(n_threads=1, verify_width=1) as engine:
        content = engine.chat([{"role": "user", "content": "Add 2 and 3."}]).message["content"]
    if json.dumps(content) not in found[1]:
        pytest.skip(f"the kernels of this processor give another text: {content}")
    printed, at = output(server, command), 0
    for part in found[1].split("…"):
        at = printed.find(part, at) + len(part)
        assert at >= len(part), f"{part!r} is not, or not there, in {printed}"
    assert printed.startswith('{"choices"')
    assert at == len(printed.rstrip())


def test_the_text_is_that_of_the_engine(server: Serve) -> None:
    """A greedy reply; which one it is depends on the processor's kernels."""
    messages = [{"role": "user", "content": "Add 2 and 3."}]
    reply = server.post("/v1/chat/completions", messages=messages, temperature=0)
    with Engine.demo(n_threads=1, verify_width=1) as engine:
        wanted = engine.chat(messages)
    assert reply["choices"][0]["message"]["content"] == wanted.message["content"]
