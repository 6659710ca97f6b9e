"""Taking an upstream from a git repository; the repositories are on this disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from patch_fakes import UPSTREAM, Checkout, edits, make_repository, plain_git, replaced, tree_id

NEXT = UPSTREAM | {
    "src/b.cpp": replaced("src/b.cpp", ("b 1\n", "b 0\nb 1\n")),
    "CMakeLists.txt": b"set(LLAMA_VERSION_MAJOR 1)\nset(LLAMA_VERSION_MINOR 2)\nset(LLAMA_VERSION_PATCH 3)\n",
    # What git would leave out if it asked the tree's own rules, and change if it asked the machine's.
    ".gitignore": b"*.o\n",
    "src/kept.o": b"\r\n\x00",
}
PATCH = edits("b: ten", "src/b.cpp", ("b 10\n", "b ten\n"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Give a repository whose commit has the tag of a build."""
    make_repository(tmp_path / "upstream", NEXT, "b2")
    return tmp_path / "upstream"


def test_a_tag_is_fetched_and_pinned_by_its_commit(checkout: Checkout, repository: Path) -> None:
    checkout.set_exported({"ten.patch": PATCH})
    commit = plain_git("rev-parse", "HEAD", cwd=repository)
    outcome = checkout.ok("fetch", "--git", f"file://{repository}@b2")
    assert outcome.data["commit"] == commit
    assert outcome.data["upstream"]["build"] == "b2"
    assert outcome.data["upstream"]["llama_cpp_version"] == "1.2.3"
    assert outcome.data["upstream"]["tree"] == tree_id(NEXT)
    checkout.ok("rebase-onto", "b2")
    data = checkout.ok("rebase-onto", "--finish").data
    assert f"fetch --git file://{repository}@{commit}" in "\n".join(data["commands"])
    pin = checkout.pin_file.read_text("utf-8")
    assert f'commit = "{commit}"\n' in pin
    assert "sha256" not in pin
    assert "subdir" not in pin
    patched = replaced("src/b.cpp", ("b 10\n", "b ten\n"), base=NEXT["src/b.cpp"])
    assert checkout.content() == NEXT | {"src/b.cpp": patched}
    # From then on it is the base, got again from there, and nowhere else.
    content = checkout.everything()
    shutil.rmtree(checkout.cache)
    shutil.rmtree(checkout.tree)
    outcome = checkout.run("apply")
    assert outcome.code == 7
    assert "lucebox-patches fetch" in outcome.text
    assert checkout.run("status").data["source_at_hand"] is False
    checkout.ok("apply", "--fetch")
    assert checkout.everything() == content
    assert checkout.ok("status").data["source_at_hand"] is True


def test_archive_and_commit_give_the_same_patched_tree(checkout: Checkout, repository: Path) -> None:
    checkout.set_exported({"ten.patch": PATCH})
    by_git = checkout.copy("by-git")
    by_git.ok("fetch", "--git", f"file://{repository}@b2")
    checkout.fetch(NEXT)
    for one in (checkout, by_git):
        one.ok("rebase-onto", "b2")
        one.ok("rebase-onto", "--finish")
    assert checkout.content() == by_git.content()
    assert checkout.series_files() == by_git.series_files()
    assert checkout.stamp()["tree"] == by_git.stamp()["tree"]


def test_a_commit_without_a_tag_is_named_by_its_id(checkout: Checkout, repository: Path) -> None:
    commit = plain_git("rev-parse", "HEAD", cwd=repository)
    outcome = checkout.ok("fetch", "--git", f"file://{repository}@{commit}")
    assert outcome.data["upstream"]["build"] == f"g{commit[:9]}"
    for name in (f"g{commit[:9]}", commit, tree_id(NEXT)):
        checkout.set_exported({})
        checkout.ok("rebase-onto", name)
        checkout.ok("abort")


@pytest.mark.parametrize("what", ["none", "b9", "--upload-pack=x", "0" * 40])
def test_what_cannot_be_fetched_is_named(checkout: Checkout, repository: Path, what: str) -> None:
    before = checkout.everything()
    outcome = checkout.run("fetch", "--git", f"file://{repository}@{what}")
    assert outcome.code in (2, 7)
    assert what in outcome.text
    assert checkout.everything() == before


@pytest.mark.parametrize("address", ["nothing", "--upload-pack=touch x@HEAD", "file:///none@HEAD"])
def test_addresses_that_cannot_be(checkout: Checkout, address: str) -> None:
    outcome = checkout.run("fetch", "--git=" + address)
    assert outcome.code in (2, 7)
    assert not list(checkout.root.rglob("x"))


def test_a_repository_with_links_is_refused(checkout: Checkout, repository: Path) -> None:
    (repository / "link").symlink_to("/etc")
    plain_git("add", "link", cwd=repository)
    plain_git("commit", "--quiet", "-m", "link", cwd=repository)
    outcome = checkout.run("fetch", "--git", f"file://{repository}@HEAD")
    assert outcome.code == 2
    assert "link" in outcome.text
    assert checkout.run("rebase-onto", tree_id(NEXT)).code != 0


def test_a_pinned_commit_with_another_tree_is_refused(checkout: Checkout, repository: Path) -> None:
    checkout.ok("fetch", "--git", f"file://{repository}@b2")
    checkout.set_exported({})
    checkout.ok("rebase-onto", "b2")
    checkout.ok("rebase-onto", "--finish")
    pin = checkout.pin_file.read_text("utf-8")
    checkout.pin_file.write_text(pin.replace(tree_id(NEXT), "1" * 40), encoding="utf-8")
    (checkout.patches / "EXPECTED").unlink()
    outcome = checkout.run("fetch")
    assert outcome.code == 3
    assert outcome.data["error"]["expected"] == "1" * 40
    assert outcome.data["error"]["found"] == tree_id(NEXT)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('git = "file:///x"\n', "missing: commit"),
        ('git = "file:///x"\ncommit = "abc"\n', "not a valid commit"),
        ('git = "file:///x"\ncommit = "' + "a" * 40 + '"\nsha256 = "' + "0" * 64 + '"\n', "both"),
        ('git = "-x"\ncommit = "' + "a" * 40 + '"\n', "not a valid git"),
    ],
)
def test_a_pin_of_a_commit_is_checked(checkout: Checkout, text: str, word: str) -> None:
    kept = [line for line in checkout.pin_file.read_text("utf-8").splitlines(keepends=True)
            if not line.startswith(("sha256", "subdir"))]
    checkout.pin_file.write_text("".join(kept) + text, encoding="utf-8")
    outcome = checkout.run("status")
    assert outcome.code == 3
    assert word in outcome.text
