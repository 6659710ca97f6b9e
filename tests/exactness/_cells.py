"""The cells of the exactness matrix, and the part of them that every test run takes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields

WEIGHT_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_K", "q6_K", "iq4_nl", "iq4_xs", "iq3_s")
PROMPT_LENGTHS = (16, 2200)


@dataclass(frozen=True)
class Cell:
    """One setting under which a sequence must have the bits it has when its tokens are decoded one by one.

    Attributes
    ----------
    weight_type
        ggml type of the model's matrices.
    repack
        Whether the CPU back end may lay weights out anew; which types it does so for depends on the CPU.
    flash_attn
        Attention in one operation, or as product, softmax and product.
    cache_type
        ggml type of the K cache, and of the V cache where it may be.
    n_threads
        Threads of every step.
    n_seq
        Sequences decoded together.
    n_prompt
        Tokens of the longest prompt; each further sequence has one token less.
    """

    weight_type: str
    repack: bool = True
    flash_attn: bool = True
    cache_type: str = "f16"
    n_threads: int = 1
    n_seq: int = 1
    n_prompt: int = 16

    @property
    def cache_type_v(self) -> str:
        """ggml type of the V cache; without flash attention V is stored transposed, which no block format can be."""
        return self.cache_type if self.flash_attn else "f16"

    def __str__(self) -> str:
        return "-".join(
            (
                self.weight_type,
                "repack" if self.repack else "plain",
                "fa" if self.flash_attn else "nofa",
                self.cache_type,
                f"{self.n_threads}t",
                f"{self.n_seq}s",
                str(self.n_prompt),
            )
        )


VALUES: dict[str, tuple[object, ...]] = {
    "weight_type": WEIGHT_TYPES,
    "repack": (True, False),
    "flash_attn": (True, False),
    "cache_type": ("f16", "q8_0"),
    "n_threads": (1, 2),
    "n_seq": (1, 4),
    "n_prompt": PROMPT_LENGTHS,
}
assert tuple(VALUES) == tuple(field.name for field in fields(Cell))

ALL_CELLS = tuple(Cell(*values) for values in itertools.product(*VALUES.values()))  # type: ignore[arg-type]


def _pairs(cell: Cell) -> set[tuple[object, ...]]:
    values = [(field.name, getattr(cell, field.name)) for field in fields(Cell)]
    return set(itertools.combinations(values, 2))


def covering_cells(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """Choose cells such that every two values that occur together in `cells` do so in one of the chosen.

    Greedy: always the cell with the most pairs not seen yet, the cheapest of equals, the first of those. A fault of one
    kernel needs one value, seldom two (such as a type whose layout is not repacked), to show.
    """
    left = set().union(*map(_pairs, cells))
    chosen = []
    while left:
        best = max(cells, key=lambda cell: (len(_pairs(cell) & left), -cell.n_prompt))
        left -= _pairs(best)
        chosen.append(best)
    return tuple(chosen)


QUICK_CELLS = covering_cells(ALL_CELLS)
