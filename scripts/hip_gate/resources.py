"""What kernels need of a compute unit, and the recorded table of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from hip_gate.errors import UsageError
from hip_gate.toolchain import Toolchain

_KERNEL = re.compile(r"^  - ", re.MULTILINE)
_FIELD = re.compile(r"^    \.(\w+): +(\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Needs:
    """The most that the kernels of one template need; spills and their number are sums."""

    kernels: int
    vgprs: int
    sgprs: int
    spilled_registers: int
    lds_bytes: int
    scratch_bytes: int

    def __add__(self, other: Needs) -> Needs:
        """Return what both need together."""
        return Needs(
            self.kernels + other.kernels,
            max(self.vgprs, other.vgprs),
            max(self.sgprs, other.sgprs),
            self.spilled_registers + other.spilled_registers,
            max(self.lds_bytes, other.lds_bytes),
            max(self.scratch_bytes, other.scratch_bytes),
        )


Table = dict[tuple[str, str], Needs]  # by source and template
_COLUMNS = ("source", "template", *(field.name for field in fields(Needs)))


def read_code_object(toolchain: Toolchain, code_object: Path) -> dict[str, Needs]:
    """Return the needs of the kernels in a code object, by the name of the template that they are made from."""
    notes = toolchain.run("llvm-readelf", "--notes", code_object)
    found = [dict(_FIELD.findall("    " + part)) for part in _KERNEL.split(notes)[1:]]
    found = [kernel for kernel in found if "vgpr_count" in kernel]
    names = toolchain.run("llvm-cxxfilt", stdin="\n".join(kernel["name"] for kernel in found)).splitlines()
    table: dict[str, Needs] = {}
    for kernel, name in zip(found, names, strict=True):
        needs = Needs(
            kernels=1,
            vgprs=int(kernel["vgpr_count"]),
            sgprs=int(kernel["sgpr_count"]),
            spilled_registers=int(kernel["vgpr_spill_count"]) + int(kernel["sgpr_spill_count"]),
            lds_bytes=int(kernel["group_segment_fixed_size"]),
            scratch_bytes=int(kernel["private_segment_fixed_size"]),
        )
        template = _template_name(name)
        table[template] = table[template] + needs if template in table else needs
    return table


def read_table(path: Path) -> Table:
    """Read the recorded table.

    Raises
    ------
    UsageError
        If a line is not of the form that `write_table` gives.
    """
    table: Table = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        parts = line.split("\t")
        if line.startswith("#") or parts[0] == "source":
            continue
        try:
            source, template, *values = parts
            table[source, template] = Needs(*map(int, values))
        except (TypeError, ValueError) as error:
            raise UsageError(
                "the table cannot be read", f"{path}:{number}: {line!r}", "make it again with --record"
            ) from error
    return table


def write_table(path: Path, table: Mapping[tuple[str, str], Needs]) -> None:
    """Write the table in its one form."""
    lines = ["# made by hip-gate --record: the most that kernels of a template need on gfx1151; spills are sums"]
    lines.append("\t".join(_COLUMNS))
    for (source, template), needs in sorted(table.items()):
        lines.append("\t".join((source, template, *(str(getattr(needs, field.name)) for field in fields(Needs)))))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def compare(recorded: Table, source: str, found: Mapping[str, Needs]) -> Iterable[str]:
    """Yield what is worse than recorded, or not as recorded, for the kernels of one source."""
    expected = {template: needs for (name, template), needs in recorded.items() if name == source}
    for template in sorted(expected.keys() - found.keys()):
        yield f"{template}: recorded, but not compiled"
    for template, needs in sorted(found.items()):
        if template not in expected:
            yield f"{template}: not recorded ({_text(needs)})"
            continue
        for field in fields(Needs):
            seen, known = getattr(needs, field.name), getattr(expected[template], field.name)
            if seen > known or (field.name == "kernels" and seen != known):
                yield f"{template}: {field.name} {seen}, recorded {known}"


def _text(needs: Needs) -> str:
    return ", ".join(f"{field.name} {getattr(needs, field.name)}" for field in fields(Needs))


def _template_name(demangled: str) -> str:
    name = re.sub(r"^void ", "", demangled).replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", name, maxsplit=1)[0]
