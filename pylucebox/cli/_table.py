"""Tables: drawn by rich on a terminal, aligned plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Texts in columns.

    Attributes
    ----------
    title
        Line above.
    columns
        Headings. The first column is aligned left, the others right.
    rows
        Cells, one per column in each row.
    has_total
        Whether the last row sums up the others.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    has_total: bool = False


def plain_lines(table: Table) -> list[str]:
    """Return title, headings and rows, aligned with spaces."""
    cells = [table.columns, *table.rows]
    widths = [max(len(row[index]) for row in cells) for index in range(len(table.columns))]
    return [table.title, *("  " + _aligned(row, widths) for row in cells)]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(row, widths, strict=True)
    return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]).rstrip()


def print_table(table: Table) -> None:
    """Print a table on standard output, and an empty line after it."""
    if not sys.stdout.isatty():
        print(*plain_lines(table), "", sep="\n")
        return
    from rich import box  # noqa: PLC0415 - rich is slow to import and not needed for plain output
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table as RichTable  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    drawn = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    for index, heading in enumerate(table.columns):
        drawn.add_column(heading, justify="right" if index else "left", no_wrap=True)
    for index, row in enumerate(table.rows):
        before_last = index == len(table.rows) - 2
        is_total = table.has_total and index == len(table.rows) - 1
        drawn.add_row(
            *(Text(cell) for cell in row),  # as Text, since "[0.98, 1.02]" would be read as markup
            style="bold" if is_total else None,
            end_section=table.has_total and before_last,
        )
    Console().print(drawn)
