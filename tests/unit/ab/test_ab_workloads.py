"""The workloads: the same text everywhere, sized to the model, and none of it shared."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from pylucebox import BuildError, InvalidArgumentError
from pylucebox.ab import workloads
from pylucebox.ab.records import Suite
from pylucebox.ab.workloads import _corpus, _made
from pylucebox.ab.workloads._catalog import RECIPES
from pylucebox.ab.workloads._desk import Desk, draw, fingerprint, knows_chat
from pylucebox.ab.workloads._pins import STAND_IN_N_CTX, prompt_hashes, stand_in_tokenize
from pylucebox.ab.workloads._recipe import sized

ROOT = Path(__file__).resolve().parents[3]


def plain_tokenize(text: str) -> list[int]:
    """Tokenize like a model without chat marks: one token per three bytes."""
    content = text.encode()
    return [int.from_bytes(content[at : at + 3], "little") for at in range(0, len(content), 3)]


@pytest.fixture(scope="module")
def everything() -> Suite:
    """Return all workloads at full size, as a model gets them that follows instructions."""
    return workloads.build_suite("full", only=tuple(RECIPES), tokenize=stand_in_tokenize, n_ctx=STAND_IN_N_CTX)


def test_every_prompt_is_the_pinned_one(everything: Suite) -> None:
    pinned = workloads.pins()["stand-in"]
    assert pinned["n_ctx"] == STAND_IN_N_CTX
    assert pinned["tokenizer"] == fingerprint(stand_in_tokenize)
    assert {each.name: prompt_hashes(each) for each in everything.workloads} == pinned["prompts"]


def test_corpus_is_the_pinned_one() -> None:
    assert all(_corpus.read(name) for name in _corpus.FILES)
    assert len(_corpus.CORPUS_SHA256) == 64


def test_a_changed_corpus_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("Another text.\n", encoding="utf-8")
    monkeypatch.setattr(_corpus, "_FOLDER", tmp_path)
    with pytest.raises(BuildError, match="not the pinned text"):
        _corpus.read.__wrapped__("prose.txt")
    with pytest.raises(BuildError, match="cannot read"):
        _corpus.read.__wrapped__("code.txt")


def test_prompts_and_outputs_fit_the_context_and_the_class(everything: Suite) -> None:
    for each in everything.workloads:
        recipe = RECIPES[each.name]  # nothing is scaled in so large a context, so the names are those of the recipes
        for request in each.requests:
            assert request.n_prompt == len(stand_in_tokenize(request.prompt))
            assert request.n_prompt <= max(recipe.n_prompt, 1200)  # some prompts are of a length of their own
            if recipe.n_ctx is None:
                assert request.n_prompt + request.max_tokens < each.n_ctx
        assert each.n_ctx <= STAND_IN_N_CTX


@pytest.mark.parametrize("name", ["code-16k", "code-64k", "count-66k", "code-edit", "short-answer"])
def test_long_prompts_fill_their_class_to_the_last_lines(everything: Suite, name: str) -> None:
    workload = next(each for each in everything.workloads if each.name == name)
    filled = workload.requests[0].n_prompt
    assert filled is not None
    assert 0.97 * RECIPES[name].n_prompt < filled <= RECIPES[name].n_prompt


def test_control_and_warmup_are_other_text(everything: Suite) -> None:
    for each in everything.workloads:
        prompts = {request.prompt for request in each.requests}
        assert each.warmup.prompt not in prompts
        assert _corpus.warmup_article().splitlines()[0] not in "".join(prompts)
        if each.kind == "edges":
            assert each.control is None
        else:
            assert each.control is not None
            assert each.control.prompt not in prompts
            assert each.control.max_tokens == each.requests[0].max_tokens


def test_different_workloads_share_no_beginning_worth_caching(everything: Suite) -> None:
    """A server that caches prompts must not give one workload the work of another."""
    related = ("sweep-", "edges-", "card-", "multi-")
    prompts = [
        (each.name, stand_in_tokenize(request.prompt)[:64])
        for each in everything.workloads
        for request in each.requests
        if not each.name.startswith(related)
    ]
    for (name, one), (other, two) in itertools.combinations(prompts, 2):
        if name != other:
            shared = next(i for i, pair in enumerate(zip(one, two, strict=False)) if pair[0] != pair[1])
            assert shared < 32, f"{name} and {other} share {shared} tokens"


def test_small_context_scales_and_says_so() -> None:
    suite = workloads.build_suite("full", tokenize=plain_tokenize, n_ctx=4096)
    by_name = {each.name: each for each in suite.workloads}
    long, short = by_name["code-64k@4k"].requests[0], by_name["code-16k@4k"].requests[0]
    assert long.n_prompt is not None
    assert short.n_prompt is not None
    assert long.n_prompt > 3000 > short.n_prompt > 1500
    assert long.max_tokens == short.max_tokens == 512
    assert "prose-story" in by_name
    assert all(each.n_ctx <= 4096 for each in suite.workloads)


def test_names_tell_contexts_apart() -> None:
    names = {
        workloads.build_suite("full", only=["code-64k"], tokenize=plain_tokenize, n_ctx=n_ctx).workloads[0].name
        for n_ctx in (4096, 6144, 32_768, 131_072)
    }
    assert names == {"code-64k@4k", "code-64k@6k", "code-64k@32k", "code-64k"}


def test_sized_keeps_what_fits_and_orders_what_does_not() -> None:
    assert sized(512, 512, 4096) == (512, 512, False)
    n_prompt, n_output, is_scaled = sized(65_536, 1024, 4096)
    assert is_scaled
    assert n_prompt + n_output < 4096
    assert sized(4096, 1024, 4096)[0] < sized(16_384, 1024, 4096)[0] < n_prompt


def test_model_without_chat_gets_beginnings_of_texts() -> None:
    assert not knows_chat(plain_tokenize)
    suite = workloads.build_suite("full", tokenize=plain_tokenize, n_ctx=4096)
    names = {each.name.partition("@")[0] for each in suite.workloads}
    assert names == set(workloads.names("full")) - {name for name, recipe in RECIPES.items() if recipe.needs_chat}
    story = next(each for each in suite.workloads if each.name == "prose-story")
    assert "<|im_start|>" not in story.requests[0].prompt
    assert story.requests[0].temperature > 0


def test_workload_that_needs_instructions_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="think-long") as caught:
        workloads.build_suite("full", only=["think-long"], tokenize=plain_tokenize, n_ctx=4096)
    assert caught.value.argument == "workload"


def test_text_that_changes_its_kind_is_asked_for_or_shaped_by_a_grammar() -> None:
    made = [
        workloads.build_suite("full", only=["drift"], tokenize=tokenize, n_ctx=4096).workloads[0].requests[0]
        for tokenize in (plain_tokenize, stand_in_tokenize)
    ]
    assert "1047\n" in made[0].prompt
    assert made[0].grammar is not None
    assert made[0].temperature > 0.0
    assert "story" in made[1].prompt
    assert made[1].grammar is None


@pytest.mark.parametrize("only", [["no-such"], ["json", "json"]])
def test_wrong_names_are_refused(only: list[str]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        workloads.build_suite("quick", only=only, tokenize=stand_in_tokenize, n_ctx=4096)
    assert caught.value.argument == "workload"


def test_unknown_suite_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgumentError, match="quick, ci, seed, full"):
        workloads.build_suite("slow", tokenize=stand_in_tokenize, n_ctx=4096)


def test_context_that_is_too_small_is_refused_with_the_size_needed() -> None:
    with pytest.raises(InvalidArgumentError, match="at least") as caught:
        workloads.build_suite("quick", tokenize=stand_in_tokenize, n_ctx=64)
    assert caught.value.argument == "n_ctx"


def test_suites_are_made_of_known_workloads_once_each() -> None:
    for suite in workloads.SUITES:
        names = workloads.names(suite)
        assert len(set(names)) == len(names)
        assert set(names) <= set(RECIPES)
        kinds = {RECIPES[name].kind for name in names}
        assert "edges" not in kinds, "their scatter would become the noise floor of the others"
        assert not any(part.start_share for name in names for part in RECIPES[name].parts), "engine arms cannot stagger"
    assert len(workloads.names("quick")) <= 6


def test_several_sequences_start_together_or_one_by_one(everything: Suite) -> None:
    by_name = {each.name: each for each in everything.workloads}
    for name, n_seq in (("multi-3", 3), ("multi-4", 4), ("multi-4-mixed", 4), ("multi-stagger", 4)):
        each = by_name[name]
        assert each.n_seq == len(each.requests) == n_seq
        assert len({request.prompt for request in each.requests}) == n_seq
        assert each.staggered == (name == "multi-stagger")
    assert [request.start_s for request in by_name["multi-stagger"].requests] == [0.0, 3.0, 6.0, 9.0]
    assert [request.max_tokens for request in by_name["multi-stagger"].requests] == [768, 384, 192, 64]


def test_last_tokens_of_a_context_are_reached(everything: Suite) -> None:
    edge = next(each for each in everything.workloads if each.name == "edges-context")
    request = edge.requests[0]
    assert request.n_prompt is not None
    assert 4 == request.max_tokens <= edge.n_ctx - request.n_prompt <= 5


def test_card_sampling_is_as_named(everything: Suite) -> None:
    for each in everything.workloads:
        if each.name.startswith("card-t1-"):
            request = each.requests[0]
            assert (request.temperature, request.top_k, request.top_p) == (1.0, 20, 0.95)


def test_sentinel_is_short_and_greedy() -> None:
    request = workloads.sentinel()
    assert request.max_tokens == 128
    assert request.temperature == 0.0


def test_fill_takes_whole_lines_and_repeats_a_short_source() -> None:
    desk = Desk(tokenize=plain_tokenize, n_ctx=4096, is_chat=False)
    text = desk.fill("one line\nanother\n", 100)
    assert len(plain_tokenize(text)) <= 100
    assert text.startswith("one line\nanother\none line\n")
    assert text.endswith("\n")
    assert len(plain_tokenize(text + "one line\nanother\n")) > 100
    assert desk.fill("one line\n", 1) == desk.fill("one line\n", -5) == ""


def test_draw_is_the_same_in_every_python() -> None:
    assert [draw(f"key {i}", 1000) for i in range(5)] == [298, 943, 787, 802, 108]


def test_json_that_is_shown_is_json() -> None:
    import json

    assert len(json.loads(_made.json_array(301, 40))) == 40


def test_package_loads_neither_numpy_nor_the_native_library() -> None:
    code = (
        "import sys, pylucebox.ab.workloads as w; w.names('quick');"
        "print(sorted({'numpy', 'rich', 'pylucebox._native'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
