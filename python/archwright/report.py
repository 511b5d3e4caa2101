"""How an inspection looks: in a terminal and as one HTML page. Nothing here decides anything."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .demangle import demangle, short_name
from .gates import Verdict
from .ui import out, say

if TYPE_CHECKING:
    from .compare import Comparison
    from .inspection import Inspection
    from .kernels import DeviceCode, KernelFacts

__all__ = ["html_page", "show_comparison", "show_inspection"]

_HEADINGS = ("kernel", "arch", "registers", "spills", "stack", "shared", "threads", "code", "tensor core", "bulk copy")
_ASCEND_HEADINGS = ("kernel", "arch", "core", "code", "arguments", "e_flags", "file")
_LEFT = frozenset(["kernel", "arch", "tensor core", "core", "file"])
_STYLE = {Verdict.PASSED: "green", Verdict.UNKNOWN: "yellow", Verdict.FAILED: "bold red"}
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
        _show_table(_HEADINGS, _rows(kernels, 56))
        say(f"  {_compilers(inspection)}", "dim")
    if ascend := _ascend_rows(subject.code, 56):
        _show_table(_ASCEND_HEADINGS, ascend)
        say(f"  {_inventory(subject.code)}", "dim")
    for member in subject.code.unknown:
        say(f"  device code: unknown  {member}", "yellow")
    if subject.sources:
        say(f"  {len(subject.sources)} lowered sources, for CANN's compiler")
    elif not kernels and not ascend and not subject.code.unknown:
        say("  no device code")
    for finding in inspection.findings:
        for problem in finding.problems:
            say(f"  {finding.code} {finding.gate}: {problem}", "red")
        for what in finding.unknown:
            say(f"  {finding.code} unknown, not verified here: {what}", "yellow")
    claim = f"({len(inspection.findings)} gates); {_claims(inspection)} (no device)"
    say(f"  {_words(inspection)} {claim}", _STYLE[inspection.verdict])


def _words(inspection: Inspection) -> str:
    """The verdict with the gates that it is from: `failed AW416`; `unknown AW424: not verified here`."""
    verdict = inspection.verdict
    codes = [finding.code for finding in inspection.findings if finding.verdict is verdict]
    if verdict is Verdict.PASSED:
        return "passed"
    return f"{verdict} {', '.join(codes)}" + (": not verified here" if verdict is Verdict.UNKNOWN else "")


def _claims(inspection: Inspection) -> str:
    device_compile = "device_compile: not verified here; " if inspection.subject.is_ascend else ""
    return f"{device_compile}correct, performs: not verified here"


def _show_table(headings: Sequence[str], rows: list[list[str]]) -> None:
    """A table in a terminal that is wide enough; elsewhere the same columns as plain lines, one a kernel."""
    if sys.stdout.isatty() and out().width >= _WIDE:
        from rich.markup import escape
        from rich.table import Table

        table = Table(pad_edge=False, box=None)
        for heading in headings:
            table.add_column(heading, justify="left" if heading in _LEFT else "right", no_wrap=True)
        for row in rows:
            table.add_row(*map(escape, row))
        out().print(table)
        return
    rows = [list(headings), *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(headings, row, widths, strict=True)
        line = "  ".join(text.ljust(width) if heading in _LEFT else text.rjust(width) for heading, text, width in cells)
        print(line.rstrip())


def show_comparison(comparison: Comparison) -> None:
    made = [
        f"{what} {', '.join(old) or 'none'} -> {', '.join(new) or 'none'}; "
        for what, (old, new) in (("nvcc", comparison.toolkits), ("compilers", comparison.compilers))
        if old or new
    ]
    was, now = comparison.bytes
    say(f"{''.join(made)}{was / 2**20:.2f} -> {now / 2**20:.2f} MiB", "bold")
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


def _ascend_rows(code: DeviceCode, width: int) -> list[list[str]]:
    """One row for each entry symbol of Ascend device code, with `_ASCEND_HEADINGS` as columns."""
    rows = [
        [
            short_name(demangle(kernel.name), width),
            found.arch,
            kernel.core,
            str(kernel.code),
            "?" if kernel.arguments is None else str(kernel.arguments),
            f"{found.flags:#x}",
            f"{found.member} {found.section}".rstrip(),
        ]
        for found in code.ascend
        for kernel in found.kernels
    ]
    return [list(row) for row in dict.fromkeys(map(tuple, rows))]


def _inventory(code: DeviceCode) -> str:
    counts = ", ".join(f"{len(names)} for {arch}" for arch, names in code.inventory.items())
    return f"entry symbols of {len(code.ascend)} CCE ELF files: {counts}"


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
.passed {{ color: #08703c; }} .unknown {{ color: #8a5a00; }} .failed {{ color: #b00020; }}
code {{ font-size: 12px; overflow-wrap: anywhere; }}
@media (prefers-color-scheme: dark) {{
  body {{ background: #161616; color: #ddd; }} .passed {{ color: #5fd394; }}
  .unknown {{ color: #f0b849; }} .failed {{ color: #ff7b87; }}
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
    word = inspection.verdict
    parts = [
        f"<h2>{html.escape(wheel.path.name)}</h2>",
        f"<p>{wheel.size} bytes, sha256 <code>{wheel.sha256}</code>: "
        f'<strong class="{word}">{_words(inspection)}</strong>; {_claims(inspection)}</p><ul>',
    ]
    for finding in inspection.findings:
        mark = finding.verdict
        parts.append(f'<li><span class="{mark}">{mark}</span> {finding.code} ({html.escape(finding.gate)})')
        parts += [f"<br><code>{html.escape(problem)}</code>" for problem in (*finding.problems, *finding.unknown)]
    parts.append("</ul>")
    if kernels:
        parts += _html_table(_compilers(inspection), _HEADINGS, _rows(kernels, 400))
    if ascend := _ascend_rows(subject.code, 400):
        parts += _html_table(_inventory(subject.code), _ASCEND_HEADINGS, ascend)
    return "\n".join(parts)


def _html_table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    cells = "".join(f'<th class="{_class(heading)}">{heading}</th>' for heading in headings)
    yield f"<p>{html.escape(caption)}</p><table><tr>{cells}</tr>"
    for row in rows:
        cells = "".join(
            f'<td class="{_class(heading)}">{html.escape(text)}</td>'
            for heading, text in zip(headings, row, strict=True)
        )
        yield f"<tr>{cells}</tr>"
    yield "</table>"


def _class(heading: str) -> str:
    return "left" if heading in _LEFT else "right"
