"""One page that shows what was measured; works offline."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pylucebox.ab.markup import Html, el
from pylucebox.ab.page import page

__all__ = ["write_page"]

COLOURS = ("#1f4e92", "#c1440e", "#0b6e4f", "#6b7280", "#7a3e9d", "#8a6d00")
BAR_WIDTH, BAR_HEIGHT, LABEL_WIDTH = 420, 18, 270


def write_page(folder: Path) -> Path:
    """Write ``gpu.html`` beside the files of a folder and return it.

    Those are the JSON files of `gpu_bench`, and ``kernels.jsonl`` of ``lucebox-gpu-kernels measure``.
    """
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    kernels = folder / "kernels.jsonl"
    if kernels.exists():
        lines = kernels.read_text(encoding="utf-8").splitlines()
        found["kernels"] = {"rows": [json.loads(line) for line in lines]}
    parts = [SECTIONS[name](found[name]["rows"]) for name in SECTIONS if name in found]
    header = el("header", el("h1", "The whole model on a GPU"), class_="head")
    path = folder / "gpu.html"
    path.write_text(page("gpu_bench", header, *parts), encoding="utf-8")
    return path


def _told(figure: dict[str, Any], form: str) -> str:
    return f"{figure['median']:{form}} ({figure['low']:{form}} to {figure['high']:{form}})"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    head = el("tr", *(el("th", name, scope="col") for name in columns))
    return el("table", head, *(el("tr", *(el("td", cell) for cell in row)) for row in rows))


def _bars(bars: Sequence[tuple[str, Sequence[float]]], unit: str) -> Html:
    """Draw one bar a row, of parts that lie side by side."""
    longest = max(sum(parts) for _, parts in bars) or 1.0
    marks = []
    for i, (label, parts) in enumerate(bars):
        y = i * (BAR_HEIGHT + 6)
        marks.append(el("text", label, x=0, y=y + 13, font_size=12))
        x = float(LABEL_WIDTH)
        for part, colour in zip(parts, COLOURS, strict=False):
            width = BAR_WIDTH * part / longest
            marks.append(el("rect", x=f"{x:.1f}", y=y, width=f"{width:.1f}", height=BAR_HEIGHT, fill=colour))
            x += width
        marks.append(el("text", f"{sum(parts):.3g} {unit}", x=f"{x + 6:.1f}", y=y + 13, font_size=12))
    height, width = len(bars) * (BAR_HEIGHT + 6), LABEL_WIDTH + BAR_WIDTH + 160
    return el("svg", *marks, viewBox=f"0 0 {width} {height}", width=width, height=height, role="img")


def _cycles(rows: list[dict[str, Any]]) -> Html:
    drawn = []
    for kind, context in dict.fromkeys((row["type"], row["context"]) for row in rows):
        chosen = [row for row in rows if (row["type"], row["context"]) == (kind, context)]
        default = [row for row in chosen if row["arm"] == "default"]
        parts = ("draft_us", "verify_us", "rest_us")
        bars = [(f"width {row['width']}", [row[part]["median"] / 1000 for part in parts]) for row in default]
        drawn += [el("h3", f"{kind}, behind {context} tokens"), _bars(bars, "ms")]
        drawn.append(
            _table(
                ("width", "arm", "cycle, us", "drafts, us", "verify, us", "cycle over default"),
                (
                    (
                        str(row["width"]),
                        row["arm"],
                        *(_told(row[part], ".0f") for part in ("wall_us", "draft_us", "verify_us")),
                        _told(row["over_default"], ".3f"),
                    )
                    for row in chosen
                ),
            )
        )
    note = "Medians over the rounds with 95 % intervals. A bar: drafts, verify step, sampling and rollback."
    return el("section", el("h2", "A cycle"), el("p", note, class_="soft"), *drawn, class_="card")


def _sequences(rows: list[dict[str, Any]]) -> Html:
    chances = list(rows[0]["tokens_per_s"]) if rows else []
    return el(
        "section",
        el("h2", "Several sequences"),
        el(
            "p",
            "Tokens per second of all sequences together, if each draft holds with the given chance of its own. Cycles"
            " are measured with random drafts; the tokens that they would bring are reckoned.",
            class_="soft",
        ),
        _table(
            ("sequences", "width", "arm", "cycle, us", *(f"tok/s at {chance}" for chance in chances)),
            (
                (
                    str(row["n_seq"]),
                    str(row["width"]),
                    row["arm"],
                    _told(row["wall_us"], ".0f"),
                    *(f"{value:.0f}" for value in row["tokens_per_s"].values()),
                )
                for row in rows
            ),
        ),
        class_="card",
    )


def _prefill(rows: list[dict[str, Any]]) -> Html:
    return el(
        "section",
        el("h2", "Prompts"),
        _table(
            ("type", "tokens", "way", "ms", "speed over MTP off"),
            (
                (
                    row["type"],
                    str(row["n_tokens"]),
                    row["way"],
                    _told(row["ms"], ".1f"),
                    _told(row["speed_over_off"], ".3f"),
                )
                for row in rows
            ),
        ),
        class_="card",
    )


def _demo(rows: list[dict[str, Any]]) -> Html:
    drawn = []
    for prompt in dict.fromkeys(row["prompt"] for row in rows):
        chosen = [row for row in rows if row["prompt"] == prompt]
        bars = [(row["way"], [row["tokens_per_s"]["median"]]) for row in chosen]
        drawn += [el("h3", prompt), _bars(bars, "tok/s")]
        drawn.append(
            _table(
                ("way", "tok/s", "over off", "drafts accepted", "text"),
                (
                    (
                        row["way"],
                        _told(row["tokens_per_s"], ".0f"),
                        _told(row["over_off"], ".2f"),
                        f"{row['n_accepted']} of {row['n_drafted']}",
                        "same" if row["same_text"] else f"other from token {row['differs_at']}",
                    )
                    for row in chosen
                ),
            )
        )
    note = "Greedy. The text is compared with that of the same arm without MTP."
    return el("section", el("h2", "The built-in model"), el("p", note, class_="soft"), *drawn, class_="card")


def _calls(rows: list[dict[str, Any]]) -> Html:
    return el(
        "section",
        el("h2", "Calls of the CUDA runtime"),
        _table(
            ("width", "cycles", "graphs built", "waits for drafts", "calls"),
            (
                (
                    str(row["width"]),
                    str(row["n_cycles"]),
                    str(row["n_built"]),
                    str(row["n_draft_waits"]),
                    ", ".join(f"{name} {n}" for name, n in row["calls"].items()),
                )
                for row in rows
            ),
        ),
        class_="card",
    )


def _kernels(rows: list[dict[str, Any]]) -> Html:
    drawn = []
    for invariant in (False, True):
        chosen = [row for row in rows if row["case"].startswith("invariant") is invariant]
        if not chosen:
            continue
        name = "What equal bits cost" if invariant else "More columns than upstream's vector kernels take"
        bars = [(f"{row['case'].removeprefix('invariant ')}, {row['rows']}", [row["speedup"][0]]) for row in chosen]
        drawn += [el("h3", name), _bars(bars, "of upstream's speed")]
        drawn.append(
            _table(
                ("case", "columns", "upstream, us", "here, us", "speed over upstream", "upstream over itself"),
                (
                    (
                        row["case"],
                        str(row["rows"]),
                        *(
                            _told(dict(zip(("median", "low", "high"), row[part], strict=True)), form)
                            for part, form in (
                                ("stock_us", ".2f"),
                                ("ours_us", ".2f"),
                                ("speedup", ".2f"),
                                ("noise", ".3f"),
                            )
                        ),
                    )
                    for row in chosen
                ),
            )
        )
    note = "Medians with 95 % intervals; off, off again and on in turns, captured graphs of many copies of the weights."
    return el("section", el("h2", "Kernels"), el("p", note, class_="soft"), *drawn, class_="card")


SECTIONS = {
    "demo": _demo,
    "cycles": _cycles,
    "sequences": _sequences,
    "prefill": _prefill,
    "calls": _calls,
    "kernels": _kernels,
}
