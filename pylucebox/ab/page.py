"""A whole page: no scripts, nothing loaded from elsewhere, light and dark, wide and narrow."""

from __future__ import annotations

from importlib import resources

from pylucebox.ab.markup import Html, el

__all__ = ["page"]


def page(title: str, *content: object) -> str:
    """Return a page.

    Parameters
    ----------
    title
        Of the window.
    *content
        What the page shows, as `pylucebox.ab.markup.el` takes it.
    """
    style = resources.files("pylucebox.ab").joinpath("report.css").read_text(encoding="utf-8")
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", title),
        el("style", Html(style)),
    )
    body = el("body", el("main", *content))
    return f"<!DOCTYPE html>\n{el('html', head, body, lang='en')}\n"
