"""How results look in a terminal. Nothing here decides anything."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .build import BuildResult, Observer
from .components import Cell, CellState
from .environment import Environment
from .evidence import Evidence
from .findings import Finding, Level, is_fit
from .inspection import DEVICE_COMPILE
from .manifests import Lowered
from .plan import MEMORY_SHARE, Limit, Plan
from .pool import Measured
from .repairs import Outcome, Step
from .sources import SourceTree
from .targets import Target
from .ui import err, out, print_json

if TYPE_CHECKING:
    from .repro import ReproResult

__all__ = [
    "announce",
    "matrix_as_dict",
    "progress",
    "show_built",
    "show_environment",
    "show_findings",
    "show_matrix",
    "show_plan",
    "show_repaired",
    "show_repairs",
    "show_repro",
    "show_result",
    "show_sources",
]

_STATE_STYLE = {CellState.BUILD: "green", CellState.EXPERIMENTAL: "yellow", CellState.REFUSED: "red"}
_LEVEL_MARK = {Level.OK: "[green]ok[/]  ", Level.NOTE: "[yellow]note[/]", Level.FAIL: "[bold red]FAIL[/]"}
_OUTCOME = {
    Outcome.PRINTED: "",
    Outcome.DONE: "  [green]done[/]",
    Outcome.DECLINED: "  (not run)",
    Outcome.FAILED: "  [bold red]failed[/]",
    Outcome.SKIPPED: "  (left out after that)",
}


def matrix_as_dict(shown: Sequence[Target], cells: Sequence[Cell], evidence: Sequence[Evidence]) -> dict[str, Any]:
    return {
        "targets": [
            {
                "name": target.name,
                "title": target.title,
                "tier": str(target.tier),
                "vendor": target.vendor,
                "gencodes": [g.name for g in target.gencodes],
                "devices": target.devices,
                "floor": target.floor,
            }
            for target in shown
        ],
        "cells": [
            {
                **asdict(cell),
                "state": str(cell.state),
                "available": cell.available,
                "evidence": [record.as_dict() for record in evidence if record.is_about(cell)],
            }
            for cell in cells
        ],
    }


def show_matrix(shown: Sequence[Target], cells: Sequence[Cell], evidence: Sequence[Evidence]) -> None:
    for target in shown:
        devices = ", ".join(name for names in target.devices.values() for name in names)
        table = Table(title=f"{target.name}: {target.title} ({target.tier}; {devices})", title_justify="left")
        for heading in ("component", "processor", "state", "shown here", "why, or what is missing"):
            table.add_column(heading, overflow="fold")
        for cell in (c for c in cells if c.target == target.name):
            today = "" if cell.available else " (not yet)" if cell.pending else ""
            state = f"[{_STATE_STYLE[cell.state]}]{cell.state}{today}[/]"
            claims = ", ".join(dict.fromkeys(record.claim for record in evidence if record.is_about(cell))) or "-"
            table.add_row(cell.component, cell.processor, state, claims, escape(cell.reason or cell.pending))
        out().print(table)
    out().print(
        "shown here: by evidence beside the wheels in dist/ (compiles: built and passed inspection); "
        "correct and performs: not verified here (no device)"
    )
    if names := [target.name for target in shown if target.is_ascend]:
        out().print(f"{', '.join(names)}: device_compile: {DEVICE_COMPILE}", style="yellow")


def show_findings(target: str, findings: Sequence[Finding]) -> None:
    width = max((len(finding.check) for finding in findings), default=0) + 1
    for finding in findings:
        name = f"{finding.check}:".ljust(width)
        out().print(f"{_LEVEL_MARK[finding.level]}  {escape(name)} {escape(finding.found)}")
        if finding.level is Level.FAIL:
            code = f"{finding.code}  " if finding.code else ""
            out().print(f"      {code}needed: {escape(finding.needed)}")
            out().print(f"      why: {escape(finding.why)}")
        if finding.level is not Level.OK and finding.fix:
            out().print(f"      fix: {escape(finding.fix)}", style="dim")
    fit = is_fit(tuple(findings))
    out().print(f"[bold green]fit[/] to build {target}" if fit else f"[bold red]not fit[/] to build {target}")


def show_repairs(steps: Sequence[Step]) -> None:
    """The exact lines, in order. What was run says how it ended; the others are for the user to type."""
    out().print("\nrepairs:" if steps else "\nrepairs: none that this machine has a command for")
    for step in steps:
        out().print(f"  {escape(str(step.repair))}  [dim]# {step.check}[/]{_OUTCOME[step.outcome]}")


def show_repaired(target: str, repaired: Sequence[str], findings: Sequence[Finding]) -> None:
    """After repairs were run: what they changed, and what is left."""
    out().print(f"\nrepaired: {escape(', '.join(repaired) or 'nothing')}")
    show_findings(target, [finding for finding in findings if finding.level is not Level.OK])


def show_sources(trees: Sequence[SourceTree]) -> None:
    for tree in trees:
        patches = f", {len(tree.patches)} patch" + ("es" if len(tree.patches) > 1 else "") if tree.patches else ""
        out().print(
            f"{tree.component} {tree.version}: sha256 {tree.sha256[:12]}... verified{patches}: {escape(str(tree.path))}"
        )


def show_environment(environment: Environment) -> None:
    out().print(f"[bold]{environment.target}[/]: {escape(str(environment.path))}")
    out().print(f"  toolchain  nvcc {environment.nvcc}, GCC {environment.gcc} ({escape(environment.compiler_origin)})")
    out().print(f"  runtime    Python {environment.python}, torch {environment.torch}, NCCL {environment.nccl}")
    out().print(f"  digest     {environment.digest}")


def announce(plan: Plan, *, plan_only: bool, json: bool) -> bool:
    """Show the plan before it is carried out. False when that was all that was asked for."""
    if not json:
        show_plan(plan)
    elif plan_only:
        print_json(plan.as_dict())
    return not plan_only


def show_built(plan: Plan, result: BuildResult, *, json: bool) -> None:
    if json:
        print_json({"plan": plan.as_dict(), **result.as_dict()})
    else:
        show_result(result)


def show_plan(plan: Plan) -> None:
    out().print(f"[bold]{plan.target}[/] ({plan.tier}): {', '.join(plan.components)}")
    arches = f" for {', '.join(plan.gencodes)}" if plan.device_files else ""
    if plan.device_files or plan.host_files:
        out().print(f"  files      {plan.device_files} device{arches}, {plan.host_files} host")
    if plan.processes:
        out().print(f"  processes  {plan.processes} that run the operations of AOT packs")
    out().print(
        f"  memory     up to {plan.peak_mib / 1024:.1f} of {plan.memory_mib / 1024:.1f} GiB; largest: {plan.largest}"
    )
    out().print(f"             {_memory_limits(plan)}", markup=False)
    out().print(f"  jobs       {plan.jobs}, longest first, one pool over all components")
    out().print(f"             {_limits(plan.jobs_limits, str)}", markup=False)
    out().print(f"  costs      {_costs(plan)}")
    out().print(
        f"  estimate   {_minutes(plan.estimate)} when nothing is built yet ({_minutes(plan.cpu_seconds)} of one core)"
    )


def _memory_limits(plan: Plan) -> str:
    share = "" if plan.memory_limits[0].source == "--memory" else f"{MEMORY_SHARE:.0%} of: "
    return share + _limits(plan.memory_limits, lambda mib: f"{mib / 1024:.1f} GiB")


def _limits(limits: Sequence[Limit], show: Callable[[int], str]) -> str:
    """The limit that decided, then what else was found."""
    first, *others = (f"{limit.source} {show(limit.allows)}" for limit in limits)
    return first + (f" (found too: {', '.join(others)})" if others else "")


def _costs(plan: Plan) -> str:
    if plan.measured == 0:
        return "the recipes' figures: nothing was measured here yet"
    others = "; the others as the recipes say" if plan.measured < plan.files else ""
    return f"measured here for {plan.measured} of {plan.files}{others}"


def show_result(result: BuildResult) -> None:
    done = "lowered" if any(wheel.lowered for wheel in result.wheels) else "compiled"
    units = f"{result.compiled} {done}, {result.cached} from the compiler cache, {result.up_to_date} up to date"
    count = f"{len(result.wheels)} wheel" + ("s" if len(result.wheels) > 1 else "")
    if result.host_files:
        count = f"{result.host_files} host files, no wheel"
    out().print(f"[bold green]{count}[/] in {_minutes(result.seconds)} ({units}):")
    for wheel in result.wheels:
        out().print(f"  {escape(str(wheel.path))}  {wheel.bytes / 1e6:.1f} MB")
        out().print(f"    sha256 {wheel.sha256}", style="dim")
        if wheel.evidence:
            out().print(f"    evidence {escape(str(wheel.evidence))}", style="dim")
        if wheel.lowered:
            _show_lowered(wheel.lowered)
    for name in result.retried:
        out().print(f"  killed for memory, then compiled alone: {name}", style="yellow", markup=False)
    out().print(f"  compiles: {_compiles(result)}. correct, performs: not verified here (no device)", style="dim")
    if result.device_compile:
        out().print(f"  device_compile: {result.device_compile}", style="yellow")


def _show_lowered(lowered: Lowered) -> None:
    out().print(
        f"    lowered: {lowered.lowered} of {lowered.operations} operations, {lowered.kernels} kernels; no evidence, "
        "since no compiler has seen them"
    )
    for operation, reasons in lowered.reasons.items():
        for reason in reasons:
            out().print(f"    {operation}: {reason}", style="yellow", markup=False)


def _compiles(result: BuildResult) -> str:
    if result.host_files:
        return "of these host files: shown by this build"
    if lowered := [wheel.component for wheel in result.wheels if wheel.lowered]:
        return f"not shown of {', '.join(lowered)}"
    return "shown by this build, and inspected"


@contextlib.contextmanager
def progress(plan: Plan, *, quiet: bool) -> Iterator[Observer]:
    """Report finished units: a bar in a terminal, one line each elsewhere, nothing with `quiet`."""
    if quiet:
        yield Observer()
        return
    start, count, done_seconds = time.monotonic(), 0, 0.0
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[left]}"),
        TimeElapsedColumn(),
        console=err(),
    )
    task = bar.add_task("compiling", total=plan.cpu_seconds, left="")

    def done(measured: Measured) -> None:
        nonlocal count, done_seconds
        if measured.unit is None:
            return
        count += 1
        done_seconds += measured.unit.seconds
        share, spent = done_seconds / plan.cpu_seconds, time.monotonic() - start
        # until enough is done to measure this machine's pace, the plan knows better
        left = spent / share - spent if share > 0.1 else plan.estimate - spent
        what = "cache" if measured.cached else f"{measured.seconds:.0f} s, {measured.mib / 1024:.1f} GiB"
        line = f"[{count}/{plan.files}] {measured.unit.path} ({what})"
        if err().is_terminal:
            bar.update(task, completed=done_seconds, left=f"about {_minutes(max(0.0, left))} left")
            bar.console.print(line, markup=False, style="dim")
        else:
            err().print(f"{line}; about {_minutes(max(0.0, left))} left", markup=False)

    with bar if err().is_terminal else contextlib.nullcontext():
        yield Observer(news=lambda message: err().print(message, markup=False), done=done)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{int(seconds) // 60} min {int(seconds) % 60:02} s"


def show_repro(result: ReproResult) -> None:
    """Both digests, and what they do and do not prove. The differences themselves are the error's."""
    verdict = "[bold green]identical[/]" if result.identical else "[bold red]different[/]"
    out().print(f"{result.component} for {result.target}: {verdict} in {_minutes(result.seconds)}")
    for wheel in (result.first, result.second):
        out().print(f"  sha256 {wheel.sha256}  {escape(wheel.name)}")
    out().print("varied:")
    for variation in result.varied:
        out().print(f"  {variation.what + ':':<18} {escape(variation.first)} / {escape(variation.second)}")
    out().print("not varied:")
    for same in result.not_varied:
        out().print(f"  {same.what + ':':<18} {escape(same.why)}")
    if result.kept:
        out().print(f"kept: {escape(str(result.kept))}")
