"""Compares our cold build of the SM100 components with upstream's own setup.py files, and our rebuilds with it.

    ./bootstrap python benchmarks/build.py --json build-times.json

Both sides start from fetched sources and the existing environment, and use the same nvcc, g++, torch, cores and one
gencode. Timings never make it fail; a build that fails does. README.md says what is compared and what is not equal.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from measure import MEMORY_IS, Measurement, measure
from upstream import Upstream, prepare, wheel_of

from archwright import __version__
from archwright.components import Component, select_cells
from archwright.environment import Environment, create_environment, find_environment
from archwright.errors import ArchwrightError
from archwright.measured import scaled_units
from archwright.plan import available_cores, available_memory
from archwright.project import require_space
from archwright.repro import copy_project
from archwright.sources import fetch
from archwright.targets import Gencode, select_gencodes, target_table

ALL = ("flash_mla", "deep_gemm", "deep_ep", "engine")
STEPS = ("upstream", "noop", "touch", "fill", "warm")


@dataclass(frozen=True)
class Setting:
    """What is measured, where, and under which limits."""

    components: tuple[Component, ...]
    gencodes: tuple[Gencode, ...]
    environment: Environment
    work: Path
    cores: int
    memory: int
    max_jobs: int | None
    skip: tuple[str, ...]


@dataclass(frozen=True)
class Step:
    """One measured command. `compiled` counts our units that went through a compiler or its cache."""

    name: str
    wall: float
    cpu: float
    peak_mib: float
    compiled: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Ratio:
    name: str
    value: float
    budget: float | None = None
    stretch: float | None = None
    verdict: str = ""


@dataclass
class Report:
    """Everything measured so far, in order."""

    steps: list[Step] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        self.steps.append(step)
        compiled = "" if step.compiled is None else f"  {step.compiled:3} units compiled"
        figures = f"{step.wall:8.1f} s {step.cpu:8.1f} CPU s {step.peak_mib / 1024:6.1f} GiB"
        print(f"{step.name:26}{figures}{compiled}  {step.note}".rstrip(), flush=True)

    def skip(self, step: str, why: str) -> None:
        self.skipped[step] = why
        print(f"{step:26}skipped: {why}", flush=True)

    def find(self, name: str) -> Step | None:
        return next((step for step in self.steps if step.name == name), None)


def main() -> None:
    options = _options()
    with _work_folder(options.work, options.dry_run) as work:
        setting = _setting(options, work)
        if options.dry_run:
            _show_plan(setting)
            return
        report = Report()
        machine = _machine(setting)
        print(f"{machine['model']}, {machine['cores']} cores, {machine['memory_gib']} GiB; {machine['tools']}")
        if machine["load"] > 0.3:
            print(f"warning: the machine is busy (load {machine['load']}): the figures will be wrong")
        try:
            _run(setting, report)
        finally:  # what was measured before a failure is worth keeping
            ratios = _ratios(setting, report)
            _show_ratios(ratios)
            if options.json:
                found = {
                    "machine": machine,
                    "memory_is": MEMORY_IS,
                    **asdict(report),
                    "ratios": list(map(asdict, ratios)),
                }
                options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--components", nargs="+", choices=ALL, default=ALL, metavar="NAME", help="default: all four")
    parser.add_argument("--gencode", default="sm_100a", help="the one gencode of both sides (default: sm_100a)")
    parser.add_argument("--max-jobs", type=int, help="MAX_JOBS for upstream's side (default: Ninja's own choice)")
    parser.add_argument("--skip", nargs="+", choices=STEPS, default=[], metavar="STEP", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--work", type=Path, help="keep everything here (default: a temporary folder, removed)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and facts of the machine here")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and stop")
    return parser.parse_args()


@contextlib.contextmanager
def _work_folder(named: Path | None, dry: bool) -> Iterator[Path]:
    if named or dry:
        work = (named or Path(tempfile.gettempdir()) / "archwright-bench").absolute()
        if not dry and work.exists() and any(work.iterdir()):
            raise SystemExit(f"{work} is not empty: a cold build needs an empty folder")
        yield work
    else:
        with tempfile.TemporaryDirectory(prefix="archwright-bench-") as folder:
            yield Path(folder)


def _setting(options: argparse.Namespace, work: Path) -> Setting:
    target = target_table().find("sm100")
    chosen = select_cells(target, tuple(n for n in ALL if n in options.components), platform.machine())
    if options.dry_run:
        environment = find_environment(target)
        if environment is None:
            raise SystemExit("no environment yet: `archwright env create sm100`")
    else:
        work.mkdir(parents=True, exist_ok=True)
        require_space(work, 6 << 30, "two build trees, a compiler cache and upstream's objects")
        environment = create_environment(target, report=print)
    return Setting(
        components=chosen,
        gencodes=select_gencodes(target, (options.gencode,)),
        environment=environment,
        work=work,
        cores=available_cores(),
        memory=available_memory(),
        max_jobs=options.max_jobs,
        skip=tuple(options.skip),
    )


def _run(setting: Setting, report: Report) -> None:
    """Measure every step. Upstream first; what both sides read is brought into memory before."""
    trees = {component.name: fetch(component).path for component in setting.components}
    _warm_page_cache(setting.environment)
    if "upstream" not in setting.skip:
        names = tuple(gencode.name for gencode in setting.gencodes)
        parts = prepare(setting.components, names, setting.environment, setting.work, setting.max_jobs)
        for part in parts:
            report.add(_run_upstream(part, setting.work))
        report.add(_sum("upstream", [step for step in report.steps if step.name.startswith("upstream ")]))
    clone = copy_project(setting.work / "clone")
    # with an empty compiler cache the cold build pays for filling it, and needs no second one
    cached = "fill" in setting.skip
    report.add(_build(setting, "cold", clone, cached=cached, note="fills the compiler cache" if cached else ""))
    if "noop" not in setting.skip:
        report.add(_build(setting, "noop", clone, cached=cached))
    if "touch" not in setting.skip:
        tree, unit = _median_unit(setting, trees)
        with _touched(tree / unit):
            report.add(_build(setting, "touch", clone, cached=cached, note=unit))
    if "warm" in setting.skip:
        report.skip("warm", "as asked")
    elif shutil.which("ccache") is None:
        report.skip("warm", "ccache is not on PATH")
    else:
        if not cached:
            report.add(_build(setting, "fill", copy_project(setting.work / "first"), cached=True))
        _ccache(setting, "--zero-stats")
        step = _build(setting, "warm", copy_project(setting.work / "second"), cached=True)
        report.add(Step(**asdict(step) | {"note": _hits(setting)}))


def _run_upstream(part: Upstream, work: Path) -> Step:
    log = work / f"upstream-{part.component}.log"
    taken = measure(part.command, cwd=part.folder, env=part.env, log=log)
    _require_success(taken, part.command, log)
    return Step(f"upstream {part.component}", taken.wall, taken.cpu, taken.peak_mib, note=wheel_of(part).name)


def _build(setting: Setting, name: str, clone: Path, *, cached: bool = False, note: str = "") -> Step:
    """Run `archwright build` of the clone `clone`, as a user would."""
    command, env = _our_command(setting, clone, cached=cached, recompile=name == "touch")
    log = setting.work / f"ours-{name}.json"
    taken = measure(command, cwd=clone, env=env, log=log)
    _require_success(taken, command, log)
    result = json.loads(log.read_text(encoding="utf-8"))
    if len(result["wheels"]) != len(setting.components):
        raise SystemExit(f"{log}: {len(result['wheels'])} wheels of {len(setting.components)}")
    return Step(name, taken.wall, taken.cpu, taken.peak_mib, result["compiled"] + result["cached"], note)


def _our_command(
    setting: Setting, clone: Path, *, cached: bool, recompile: bool = False
) -> tuple[list[str], dict[str, str]]:
    """The toolchain's Python runs the clone's own code: the tool's Python has this work tree's installed."""
    command = [
        *(str(setting.environment.toolchain / "bin" / "python"), "-m", "archwright", "build", "sm100"),
        *(component.name for component in setting.components),
        *(word for gencode in setting.gencodes for word in ("--gencode", gencode.name)),
        *("--out", str(clone / "dist"), "--offline", "--json"),
        *([] if cached else ["--no-compiler-cache"]),
    ]
    env = dict(os.environ) | {"PYTHONPATH": str(clone / "python"), "CCACHE_DIR": _cache_folder(setting)}
    if recompile:
        env["CCACHE_RECACHE"] = "1"  # a new time stamp alone would be answered by the cache
    return command, env


def _require_success(taken: Measurement, command: list[str] | tuple[str, ...], log: Path) -> None:
    if taken.returncode == 0:
        return
    for path in (log, log.with_name(f"{log.name}.err")):
        sys.stderr.write(path.read_text(encoding="utf-8", errors="replace")[-4000:])
    killed = " (killed: out of memory? see --max-jobs)" if "Killed" in log.read_text(errors="replace") else ""
    raise SystemExit(f"\nstatus {taken.returncode}{killed}: {shlex.join(command)}")


def _warm_page_cache(environment: Environment) -> None:
    """Read what both sides read, so that the first one does not pay for the disk."""
    toolkit, torch = environment.toolkit.resolve(), environment.runtime_site / "torch"
    folders = [(toolkit / name).resolve() for name in ("bin", "include", "nvvm")]
    for folder in (*folders, torch / "include", environment.cxx.resolve().parents[1] / "compiler"):
        for path in folder.rglob("*"):
            if path.is_file():
                path.read_bytes()


def _median_unit(setting: Setting, trees: dict[str, Path]) -> tuple[Path, str]:
    """The unit with the median compile time of all, so that neither the shortest nor the longest flatters."""
    units = [
        (unit.seconds, unit.path, trees[component.name])
        for component in setting.components
        for unit in scaled_units(component, setting.gencodes)
    ]
    middle = statistics.median_high(unit[0] for unit in units)
    _, path, tree = next(unit for unit in units if unit[0] == middle)
    return tree, path


@contextlib.contextmanager
def _touched(path: Path) -> Iterator[None]:
    """A new time stamp for a source in the cache, and the old one afterwards: that tree is shared and never changed."""
    stat = path.stat()
    os.utime(path)
    try:
        yield
    finally:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _cache_folder(setting: Setting) -> str:
    return str(setting.work / "ccache")


def _ccache(setting: Setting, option: str) -> str:
    env = dict(os.environ) | {"CCACHE_DIR": _cache_folder(setting)}
    return subprocess.run(["ccache", option], env=env, check=True, capture_output=True, text=True).stdout


def _hits(setting: Setting) -> str:
    counts = dict(line.split("\t") for line in _ccache(setting, "--print-stats").splitlines() if "\t" in line)
    hits = sum(int(counts.get(f"{kind}_cache_hit", 0)) for kind in ("direct", "preprocessed"))
    return f"ccache: {hits} hits, {counts.get('cache_miss', 0)} misses"


def _sum(name: str, steps: list[Step]) -> Step:
    """Steps one after another: times add up, the peak is the largest."""
    return Step(name, sum(s.wall for s in steps), sum(s.cpu for s in steps), max(s.peak_mib for s in steps))


def _ratios(setting: Setting, report: Report) -> list[Ratio]:
    judged = {component.name for component in setting.components} == set(ALL)

    def ratio(name: str, value: float, budget: float | None = None, stretch: float | None = None) -> Ratio:
        verdict = "" if budget is None else "not judged" if not judged else "met" if value <= budget else "missed"
        if verdict == "met" and stretch is not None:
            verdict += ", stretch met" if value <= stretch else ", stretch missed"
        return Ratio(name, value, budget, stretch, verdict)

    cold, upstream = report.find("cold"), report.find("upstream")
    if cold is None:
        return []
    result = []
    if upstream:
        result += [
            ratio("wall, cold / upstream", cold.wall / upstream.wall, 0.85, 0.75),
            ratio("CPU seconds, cold / upstream", cold.cpu / upstream.cpu),
            ratio("peak memory, cold / upstream", cold.peak_mib / upstream.peak_mib),
            ratio("wall / (CPU seconds / cores), upstream", upstream.wall * setting.cores / upstream.cpu),
        ]
    result += [
        ratio("wall / (CPU seconds / cores), cold", cold.wall * setting.cores / cold.cpu, 1.10),
        ratio("peak memory, cold / available", cold.peak_mib * 2**20 / setting.memory, 0.85),
    ]
    for name, budget in (("touch", 0.05), ("noop", 0.02), ("warm", 0.15)):
        if step := report.find(name):
            result.append(ratio(f"wall, {name} / cold", step.wall / cold.wall, budget))
    return result


def _show_ratios(ratios: list[Ratio]) -> None:
    print()
    for ratio in ratios:
        budget = "" if ratio.budget is None else f"budget {ratio.budget:.2f}"
        budget += "" if ratio.stretch is None else f" (stretch {ratio.stretch:.2f})"
        print(f"{ratio.name:42}{ratio.value:7.3f}  {budget:30}{ratio.verdict}".rstrip())


def _show_plan(setting: Setting) -> None:
    names = tuple(gencode.name for gencode in setting.gencodes)
    if "upstream" not in setting.skip:
        for part in prepare(setting.components, names, setting.environment, setting.work, setting.max_jobs, dry=True):
            added = {key: value for key, value in part.env.items() if os.environ.get(key) != value}
            print(f"cd {part.folder}\n  " + shlex.join(["env", *(f"{k}={v}" for k, v in added.items()), *part.command]))
    for name, cached in (("clone", False), ("first", True), ("second", True)):
        if not cached or "warm" not in setting.skip:
            command, env = _our_command(setting, setting.work / name, cached=cached)
            words = [f"{key}={env[key]}" for key in ("PYTHONPATH", "CCACHE_DIR")]
            print(f"cd {setting.work / name}\n  " + shlex.join(["env", *words, *command]))


def _machine(setting: Setting) -> dict[str, Any]:
    environment = setting.environment
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    tools = {name: getattr(environment, name) for name in ("python", "nvcc", "gcc", "torch", "nccl")}
    for name in ("cmake", "ninja", "ccache"):
        path = shutil.which(name, path=f"{environment.toolchain / 'bin'}{os.pathsep}{os.environ['PATH']}")
        if path:
            words = subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout.split()
            tools[name] = next(word for word in words if word[0].isdigit())
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "model": model[0].partition(":")[2].strip() if model else platform.machine(),
        "cores": setting.cores,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "available_gib": round(setting.memory / 2**30, 1),
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "archwright": __version__,
        "environment": environment.digest[:12],
        "gencodes": [gencode.name for gencode in setting.gencodes],
        "components": [component.name for component in setting.components],
        "max_jobs": setting.max_jobs,
        "tools": tools,
    }


if __name__ == "__main__":
    try:
        main()
    except ArchwrightError as error:
        raise SystemExit(str(error)) from None
