"""How an inspection looks: in a terminal and as one HTML page. Nothing here decides anything."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .demangle import demangle, short_name
from .ui import out, say

if TYPE_CHECKING:
    from .compare import Comparison
    from .inspection import Inspection
    from .kernels import KernelFacts

__all__ = ["html_page", "show_comparison", "show_inspection"]

_HEADINGS = ("kernel", "arch", "registers", "spills", "stack", "shared", "threads", "code", "tensor core", "bulk copy")
_LEFT = frozenset(["kernel", "arch", "tensor core"])
#: Columns of a terminal below which Rich would cut the names away.
_WIDE = 150
#: Families that a person looks for first; `--json` has all of them.
_TENSOR_CORE = ("tcgen05.mma", "wgmma", "mma")


def show_inspection(inspection: Inspection) -> None:
    subject = inspection.subject
    wheel, kernels = subject.wheel, subject.code.kernels
    say(f"{wheel.path.name}  {wheel.size / 2**20:.2f} MiB", "bold")
    say(f"  sha256 {wheel.sha256}", "dim")
    if kernels:
        _show_table(_rows(kernels, 56))
        say(f"  {_compilers(inspection)}", "dim")
    else:
        say("  no device code")
    for finding in inspection.findings:
        for problem in finding.problems:
            say(f"  {finding.code} {finding.gate}: {problem}", "red")
    failed = [finding.code for finding in inspection.findings if not finding.passed]
    verdict = f"failed {', '.join(failed)}" if failed else "passed"
    claim = f"({len(inspection.findings)} gates); correct, performs: not verified here (no device)"
    say(f"  {verdict} {claim}", "bold red" if failed else "green")


def _show_table(rows: list[list[str]]) -> None:
    """A table in a terminal that is wide enough; elsewhere the same columns as plain lines, one a kernel."""
    if sys.stdout.isatty() and out().width >= _WIDE:
        from rich.markup import escape
        from rich.table import Table

        table = Table(pad_edge=False, box=None)
        for heading in _HEADINGS:
            table.add_column(heading, justify="left" if heading in _LEFT else "right", no_wrap=True)
        for row in rows:
            table.add_row(*map(escape, row))
        out().print(table)
        return
    rows = [list(_HEADINGS), *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(_HEADINGS, row, widths, strict=True)
        line = "  ".join(text.ljust(width) if heading in _LEFT else text.rjust(width) for heading, text, width in cells)
        print(line.rstrip())


def show_comparison(comparison: Comparison) -> None:
    old, new = (", ".join(releases) or "no device code" for releases in comparison.toolkits)
    was, now = comparison.bytes
    say(f"nvcc {old} -> {new}; {was / 2**20:.2f} -> {now / 2**20:.2f} MiB", "bold")
    for sign, keys in (("-", comparison.removed), ("+", comparison.added)):
        for name, arch in keys:
            say(f"  {sign} {short_name(demangle(name), 100)} ({arch})")
    spilling = [c for c in comparison.changed if c.fields.keys() & {"spill_stores", "spill_loads"}]
    for change in [*spilling, *(c for c in comparison.changed if c not in spilling)]:
        fields = ", ".join(
            f"{field.replace('_', ' ')} {_value(a)} -> {_value(b)}" for field, (a, b) in change.fields.items()
        )
        say(f"  ~ {short_name(demangle(change.name), 100)} ({change.arch}): {fields}")
    count = len(comparison.changed)
    say(
        f"{comparison.kernels} kernels: {count} changed, {len(spilling)} of them in their spills; "
        f"{len(comparison.added)} added, {len(comparison.removed)} removed"
    )


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{family} {count}" for family, count in value.items()) or "none"
    return str(value)


def _rows(kernels: Iterable[KernelFacts], width: int) -> list[list[str]]:
    """One row for all architectures in which a kernel has the same figures, with `_HEADINGS` as columns."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for kernel in kernels:
        spills = "?" if kernel.spill_stores is None else f"{kernel.spill_stores}/{kernel.spill_loads}"
        families = kernel.instructions or {}
        tensor = ", ".join(f"{families[name]} {name}" for name in _TENSOR_CORE if name in families)
        figures = (
            str(kernel.registers),
            "0" if spills == "0/0" else spills,
            str(kernel.stack),
            str(kernel.shared),
            str(kernel.max_threads or "any"),
            str(kernel.code),
            tensor if kernel.instructions is not None else "?",
            str(families.get("bulk copy", 0)) if kernel.instructions is not None else "?",
        )
        arches = rows.setdefault((kernel.member, kernel.name, *figures), [])
        if kernel.arch not in arches:
            arches.append(kernel.arch)
    return [
        [short_name(demangle(name), width), ", ".join(arches), *figures] for (_, name, *figures), arches in rows.items()
    ]


def _compilers(inspection: Inspection) -> str:
    code = inspection.subject.code
    releases = ", ".join(sorted(inspection.subject.releases))
    how = sorted({compression for *_, compression in code.cubins if compression})
    return f"{len(code.cubins)} cubins, ptxas {releases}" + (f", compressed with {', '.join(how)}" if how else "")


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Archwright inspection</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }}
h2 {{ font-size: 1.05rem; overflow-wrap: anywhere; }}
table {{ border-collapse: collapse; font-size: 13px; }}
th, td {{ padding: .15rem .6rem; text-align: right; border-bottom: 1px solid #8884; vertical-align: top; }}
.left {{ text-align: left; overflow-wrap: anywhere; }}
.passed {{ color: #08703c; }} .failed {{ color: #b00020; }}
code {{ font-size: 12px; overflow-wrap: anywhere; }}
@media (prefers-color-scheme: dark) {{
  body {{ background: #161616; color: #ddd; }} .passed {{ color: #5fd394; }} .failed {{ color: #ff7b87; }}
}}
</style>
<h1>Inspection of {count}</h1>
{wheels}
<p>Level 1 only: what compiles. <strong>correct, performs: not verified here</strong> (no device ran these kernels).</p>
</html>
"""


def html_page(inspections: Sequence[Inspection]) -> str:
    """One page without scripts or anything from elsewhere; every name is escaped."""
    count = f"{len(inspections)} wheel" + ("s" if len(inspections) != 1 else "")
    return _PAGE.format(count=count, wheels="\n".join(map(_html_wheel, inspections)))


def _html_wheel(inspection: Inspection) -> str:
    subject = inspection.subject
    wheel, kernels = subject.wheel, subject.code.kernels
    word = "passed" if inspection.passed else "failed"
    parts = [
        f"<h2>{html.escape(wheel.path.name)}</h2>",
        f'<p>{wheel.size} bytes, sha256 <code>{wheel.sha256}</code>: <strong class="{word}">{word}</strong></p><ul>',
    ]
    for finding in inspection.findings:
        mark = "passed" if finding.passed else "failed"
        parts.append(f'<li><span class="{mark}">{mark}</span> {finding.code} ({html.escape(finding.gate)})')
        parts += [f"<br><code>{html.escape(problem)}</code>" for problem in finding.problems]
    parts.append("</ul>")
    if kernels:
        cells = "".join(f'<th class="{_class(heading)}">{heading}</th>' for heading in _HEADINGS)
        parts.append(f"<p>{html.escape(_compilers(inspection))}</p><table><tr>{cells}</tr>")
        for row in _rows(kernels, 400):
            cells = "".join(
                f'<td class="{_class(heading)}">{html.escape(text)}</td>'
                for heading, text in zip(_HEADINGS, row, strict=True)
            )
            parts.append(f"<tr>{cells}</tr>")
        parts.append("</table>")
    return "\n".join(parts)


def _class(heading: str) -> str:
    return "left" if heading in _LEFT else "right"
