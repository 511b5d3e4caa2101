"""What ptxas told while the build ran (`--ptxas-options=-v`): spills, which no cubin records.

The launcher keeps each compiler's output beside its object (`<object>.log`), so the report is there when a later build
compiles nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

__all__ = ["Key", "Report", "read_report", "read_reports"]

#: Kernel, architecture, registers, bytes of stack.
Key = tuple[str, str, int, int]

_COMPILING = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<arch>sm_\d+[af]?)'")
_PROPERTIES = re.compile(r"Function properties for (?P<name>\S+)")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_LOSS = re.compile(
    r"^(?:ptxas|nvlink)\b.*?\b(?:warning|info)\s*:\s*(?P<words>.*(?:setmaxnreg|Potential Performance Loss).*)"
)
_FUNCTION = re.compile(r"function '([^']+)'")
_UNNAMED = " (ptxas does not say which of {count} kernels)"


@dataclass(frozen=True, slots=True)
class Report:
    """ptxas on one kernel for one architecture. Bytes, registers per thread; `losses` are its own warnings."""

    name: str
    arch: str
    registers: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    losses: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        """Kernels of TileLang have one name for many shapes: what else is known of the code is part of the key."""
        return self.name, self.arch, self.registers, self.stack

    def spills(self) -> int:
        return self.spill_stores + self.spill_loads


def read_reports(logs: Iterable[Path]) -> dict[Key, Report]:
    """The reports of all `logs`. A log that cannot be read counts as empty; of two with one key the worse counts."""
    found: dict[Key, Report] = {}
    for path in logs:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for report in read_report(text):
            found[report.key] = max(report, found.get(report.key, report), key=Report.spills)
    return found


def read_report(text: str) -> Iterator[Report]:
    """Each kernel's report in the output of one nvcc, which compiles its architectures one after another.

    ptxas prints the losses of an architecture before its first kernel, and most of them without naming one. A loss
    without a name counts for every kernel of that architecture in this output: better one too many than none.
    """
    runs: list[_Run] = [_Run()]
    inside = ""  # properties are printed for device functions too
    for line in text.splitlines():
        run = runs[-1]
        if match := _COMPILING.search(line):
            if run.reports and run.reports[-1].arch != match["arch"]:
                runs.append(run := _Run())
            run.reports.append(Report(match["name"], match["arch"]))
            inside = ""
        elif match := _LOSS.search(line):
            if run.reports:
                runs.append(run := _Run())
            run.losses.append(match["words"].strip())
        elif match := _PROPERTIES.search(line):
            inside = match["name"]
        elif run.reports and inside == run.reports[-1].name and (match := _FRAME.search(line)):
            stack, stores, loads = map(int, match.groups())
            run.reports[-1] = replace(run.reports[-1], stack=stack, spill_stores=stores, spill_loads=loads)
        elif run.reports and (match := _USED.search(line)):
            run.reports[-1] = replace(run.reports[-1], registers=int(match[1]))
    if len(runs) > 1 and not runs[-1].reports:
        runs[-2].losses += runs.pop().losses
    for run in runs:
        yield from run.with_losses()


@dataclass(slots=True)
class _Run:
    """One ptxas: the kernels of one architecture, and the losses that it told before them."""

    reports: list[Report] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)

    def with_losses(self) -> Iterator[Report]:
        names = {report.name for report in self.reports}
        mine: dict[str, dict[str, None]] = {name: {} for name in names}
        for loss in self.losses:
            function = _FUNCTION.search(loss)
            if function and function[1] in names:
                mine[function[1]][loss] = None
                continue
            words = loss + (_UNNAMED.format(count=len(names)) if len(names) > 1 else "")
            for name in names:
                mine[name][words] = None
        yield from (replace(report, losses=tuple(mine[report.name])) for report in self.reports)
