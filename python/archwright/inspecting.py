"""The commands `inspect` and `inspect --compare`: several wheels, one after another, and what is shown of them."""

from __future__ import annotations

from pathlib import Path

from .errors import ArchwrightError, Exit, fail
from .gates import Verdict
from .inspection import Inspection, inspect_wheel, read_subject, rewrite_budget
from .project import write_errors
from .ui import err, print_error, print_json, say

__all__ = ["compare_wheels", "inspect_wheels"]


def inspect_wheels(paths: tuple[Path, ...], *, sass: bool, html: Path | None, write_budget: bool, as_json: bool) -> int:
    """Inspect every wheel, also after one that cannot be read, and return the exit status.

    With `write_budget` the kernel budgets are written first, so that the gates judge by the new ones.
    """
    disassembler = _disassembler() if sass else None
    if write_budget:
        for path in paths:
            subject = read_subject(path)
            if subject.component.has_device_code:
                err().print(f"written: {rewrite_budget(subject)}", markup=False)
    inspections: list[Inspection] = []
    results: list[dict[str, object]] = []
    status = Exit.DONE
    for path in paths:
        try:
            inspection = inspect_wheel(path, disassembler)
        except ArchwrightError as error:
            status = status or error.exit
            results.append({"wheel": str(path), "verdict": "failed", "passed": False, "error": error.as_dict()})
            if not as_json:
                print_error(error)
            continue
        inspections.append(inspection)
        if inspection.verdict is Verdict.FAILED:
            status = Exit.CHECK_FAILED
        if as_json:
            results.append(inspection.as_dict())
        else:
            from .report import show_inspection

            show_inspection(inspection)
            say()
    if html:
        from .report import html_page

        with write_errors(html):
            html.write_text(html_page(inspections), encoding="utf-8")
    if as_json:
        print_json({"passed": all(result["passed"] for result in results), "wheels": results})
    return int(status)


def compare_wheels(old: Path, new: Path, *, sass: bool, as_json: bool) -> None:
    from .compare import compare
    from .report import show_comparison

    disassembler = _disassembler() if sass else None
    comparison = compare(read_subject(old, disassembler), read_subject(new, disassembler))
    if as_json:
        print_json(comparison.as_dict())
    else:
        show_comparison(comparison)


def _disassembler() -> Path:
    from .sass import find_disassembler

    if found := find_disassembler():
        return found
    raise fail(
        "AW423",
        found="neither nvdisasm nor cuobjdump on PATH",
        needed="one of them, of the wheel's CUDA release or newer",
        why="only a disassembly tells which instructions a kernel uses; everything else needs no CUDA",
        fix="put the locked environment's cuda/bin on PATH (`archwright env create sm100` prints its path)",
    )
