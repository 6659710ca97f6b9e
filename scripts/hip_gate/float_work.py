"""Whether the float work for a column is the same however many columns a kernel takes.

A row of a verify step can have the bits of a row alone only if the compiler gives each column the same arithmetic in
every instance of a kernel. Equal counts of instructions in the disassembly are no proof of that, but different ones are
a proof of the opposite.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hip_gate.toolchain import Toolchain

_FUNCTION = re.compile(r"^<([\w.$]+)>:$")
_OPERATIONS = {
    "add": re.compile(r"v_(?:dual_)?(?:add|sub|subrev)_f32"),
    "mul": re.compile(r"v_(?:dual_)?mul_f32"),
    "fma": re.compile(r"v_(?:dual_)?(?:fma|fmac|fmamk|fmaak)_f32|v_fma_mix|v_(?:dual_)?dot2(?:acc|c)?_f32_f16"),
}


@dataclass(frozen=True)
class Family:
    """Instances of a kernel that differ in their columns; `name` has the groups `which` and, mostly, `columns`."""

    kernel: str
    name: re.Pattern[str]
    fixed_columns: int | None = None  # where the name does not tell


# ggml_type, columns, no fusion, no small K, no halved iterations; and the kernel of several tokens, two rows for each
_FAMILIES = (
    Family(
        "mul_mat_vec_q", re.compile(r"^_ZL13mul_mat_vec_qIL9ggml_type(?P<which>\d+)ELi(?P<columns>\d+)ELb0ELb0ELb0E")
    ),
    Family("mul_mat_vec_q", re.compile(r"^_ZL17mul_mat_vec_q_moeIL9ggml_type(?P<which>\d+)ELi2ELb0E"), fixed_columns=2),
)
SOURCES = frozenset({"mmvq.cu"})


def check(toolchain: Toolchain, code_object: Path) -> Iterator[str]:
    """Yield the instances whose float work for a column is not that of the instance for one column."""
    listing = toolchain.run("llvm-objdump", "-d", "--no-show-raw-insn", "--no-leading-addr", code_object)
    yield from compare(count(listing.splitlines()))


def count(lines: Iterable[str]) -> dict[str, Counter[str]]:
    """Return the float operations of each function of a disassembly."""
    work: dict[str, Counter[str]] = {}
    current: Counter[str] | None = None
    for line in lines:
        function = _FUNCTION.match(line)
        if function:
            current = work.setdefault(function[1], Counter())
        elif current is not None:
            for part in line.split("::"):  # two operations that issue together stand on one line
                instruction = part.strip()
                current.update(name for name, pattern in _OPERATIONS.items() if pattern.match(instruction))
    return work


def compare(work: dict[str, Counter[str]]) -> Iterator[str]:
    """Yield what differs, by kernel and by what tells its families apart."""
    instances: dict[tuple[str, str], list[tuple[int, Counter[str]]]] = defaultdict(list)
    for function, operations in work.items():
        for family in _FAMILIES:
            match = family.name.match(function)
            if match:
                columns = family.fixed_columns or int(match["columns"])
                instances[family.kernel, match["which"]].append((columns, operations))
    if not instances:
        yield "no kernel of few columns was found in the disassembly: have they other names now?"
    for (kernel, which), members in sorted(instances.items()):
        one = next((operations for columns, operations in members if columns == 1), None)
        if one is None:
            yield f"{kernel}<{which}>: no instance for one column"
            continue
        for columns, operations in sorted(members, key=lambda member: member[0]):
            # a value that does not depend on the column may be computed once; sums are of the column alone
            more = [name for name in _OPERATIONS if operations[name] > columns * one[name]]
            if more or operations["add"] != columns * one["add"]:
                seen = ", ".join(f"{name} {operations[name]}" for name in _OPERATIONS)
                alone = ", ".join(f"{name} {one[name]}" for name in _OPERATIONS)
                yield f"{kernel}<{which}>: {seen} for {columns} columns, {alone} for one"
