"""The plan of a build: which units, how many at once, in how much memory, about how long, and what decided that."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from .components import Component
from .errors import fail
from .measured import Toolchain, find_toolchain, measured_units, units_for
from .targets import Gencode, Target

__all__ = [
    "MEMORY_SHARE",
    "Limit",
    "Plan",
    "available_cores",
    "available_memory",
    "core_limits",
    "make_plan",
    "memory_limits",
]

#: Never plan for more than this share of the memory that the process may use.
MEMORY_SHARE = 0.85

_CGROUP = Path("/sys/fs/cgroup")

#: Version 1 has no word for "no limit": it is the largest number of pages.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Limit:
    """One thing that bounds a build: what it is and how much it allows, in cores or bytes (in a plan: MiB).

    `decides` marks the one that the plan follows.
    """

    source: str
    allows: int
    decides: bool = False


@dataclass(frozen=True)
class Plan:
    """What a build will do. Memory in MiB, times in seconds; `largest` is the unit with the highest peak.

    `memory_limits` and `jobs_limits` are all that was found to bound the two; the memory planned with is 85 % of what
    the deciding limit allows (all of it when that is `--memory`). `measured` counts the files whose costs were measured
    here before; those of the others are the recipes'.
    """

    target: str
    tier: str
    gencodes: tuple[str, ...]
    components: tuple[str, ...]
    host_files: int
    device_files: int
    operations: int
    jobs: int
    memory_mib: int
    peak_mib: int
    largest: str
    cpu_seconds: float
    estimate: float
    jobs_limits: tuple[Limit, ...] = ()
    memory_limits: tuple[Limit, ...] = ()
    measured: int = 0

    @property
    def files(self) -> int:
        return self.host_files + self.device_files + self.operations

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_plan(
    target: Target,
    chosen: tuple[Component, ...],
    gencodes: tuple[Gencode, ...],
    *,
    jobs: int | None = None,
    memory_mib: int | None = None,
    toolchain: Toolchain | None = None,
) -> Plan:
    """Plan the build of `chosen`; without `toolchain`, with what was measured for the one in the cache.

    Raises AW309 when one unit alone needs more memory than there is, and AW109 for a MAX_JOBS that is no number.
    """
    toolchain = toolchain or find_toolchain(target, gencodes)
    units = [unit for component in chosen for unit in units_for(component, gencodes, toolchain)]
    known = [path for component in chosen for path in measured_units(component, toolchain)]
    jobs, jobs_limits = _choose_jobs(jobs)
    budget, limits = _choose_memory(memory_mib)
    largest = max(units, key=lambda unit: unit.mib)
    if largest.mib > budget:
        origin = "measured here" if largest.path in known else "the recipe's figure"
        raise fail(
            "AW309",
            found=f"{budget / 1024:.1f} GiB to plan with ({_deciding(limits)})",
            needed=f"{largest.mib / 1024:.1f} GiB for {largest.label} ({origin})",
            why="the kernel would kill the compiler, or freeze the machine, after minutes of work",
            fix="free memory or raise the cgroup's limit; name the components without that file; or, if you know "
            "better, give --memory GIB",
        )
    total = sum(unit.seconds for unit in units)
    # the pool cannot split the longest unit, nor run the two largest together when they do not fit
    exclusive = sum(unit.seconds for unit in units if unit.mib * 2 > budget)
    estimate = max(total / jobs, max(unit.seconds for unit in units), exclusive)
    peaks = sorted((unit.mib for unit in units), reverse=True)[:jobs]
    return Plan(
        target=target.name,
        tier=str(target.tier),
        gencodes=tuple(g.name for g in gencodes),
        components=tuple(component.name for component in chosen),
        host_files=sum(not unit.is_device and not unit.operation for unit in units),
        device_files=sum(unit.is_device for unit in units),
        operations=sum(bool(unit.operation) for unit in units),
        jobs=jobs,
        memory_mib=budget,
        peak_mib=min(sum(peaks), budget),
        largest=largest.label,
        cpu_seconds=total,
        estimate=estimate,
        jobs_limits=jobs_limits,
        memory_limits=limits,
        measured=len(known),
    )


def _choose_jobs(asked: int | None) -> tuple[int, tuple[Limit, ...]]:
    limits = core_limits()
    if asked:
        return asked, (Limit("--jobs", asked, decides=True), *limits)
    jobs, bound = available_cores(), _max_jobs()
    if bound is not None:
        jobs, limits = min(jobs, bound), (*limits, Limit("MAX_JOBS", bound))
    return jobs, _decided(limits)


def _choose_memory(asked: int | None) -> tuple[int, tuple[Limit, ...]]:
    limits = tuple(replace(limit, allows=limit.allows >> 20) for limit in memory_limits())
    if asked is not None:
        return asked, (Limit("--memory", asked, decides=True), *limits)
    return math.floor(available_memory() * MEMORY_SHARE / 2**20), _decided(limits)


def _decided(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """The limits, lowest first: that one decides."""
    first, *others = sorted(limits, key=lambda limit: limit.allows)
    return (replace(first, decides=True), *others)


def _deciding(limits: tuple[Limit, ...]) -> str:
    source = limits[0].source
    return source if source == "--memory" else f"{MEMORY_SHARE:.0%} of what this process may use: {source}"


def _max_jobs() -> int | None:
    """MAX_JOBS of the environment, which upstream's setup.py files honour too."""
    text = os.environ.get("MAX_JOBS", "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise fail(
            "AW109",
            found=f"MAX_JOBS={text}",
            needed="a whole number above 0",
            why="it bounds how many compiles run at once, and a guess could freeze the machine",
            fix="correct or unset MAX_JOBS; --jobs N takes its place",
        )
    return int(text)


def available_cores() -> int:
    """Cores that this process may use: its affinity, and its cgroups' CPU quotas rounded up."""
    return min(limit.allows for limit in core_limits())


def available_memory() -> int:
    """Bytes that this process may still use: what the system has, and what its cgroups leave."""
    return min(limit.allows for limit in memory_limits())


def core_limits() -> tuple[Limit, ...]:
    """Everything that bounds the cores of this process."""
    limits = [Limit("cores of this process", len(os.sched_getaffinity(0)))]
    for name, folder in _cgroups("cpu"):
        quota, _, period = _read(folder / "cpu.max").partition(" ")  # version 2
        if not quota:
            quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.strip().isdigit() and int(period):
            limits.append(Limit(f"CPU quota of cgroup {name}", max(1, math.ceil(int(quota) / int(period)))))
    return tuple(limits)


def memory_limits() -> tuple[Limit, ...]:
    """Everything that bounds the memory of this process: bytes that each leaves now."""
    limits = [Limit("available on this machine", int(psutil.virtual_memory().available))]
    for name, folder in _cgroups("memory"):
        # version 2: processes above `high` are slowed down until they hardly run; version 1 has one file
        bounds = [_read(folder / file) for file in ("memory.max", "memory.high", "memory.limit_in_bytes")]
        numbers = [int(bound) for bound in bounds if bound.isdigit() and int(bound) < _NO_LIMIT]
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        if numbers and used.isdigit():
            left = max(0, min(numbers) - int(used) + _reclaimable(folder))
            limits.append(Limit(f"cgroup {name} (limit {min(numbers) / 2**30:.1f} GiB)", left))
    return tuple(limits)


def _reclaimable(folder: Path) -> int:
    """Page cache that counts as used but is given back under pressure."""
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _cgroups(controller: str) -> list[tuple[str, Path]]:
    """Names and folders of this process's cgroup and its parents: of version 2, and `controller`'s of version 1."""
    found: list[tuple[str, Path]] = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = _CGROUP / controller if controllers else _CGROUP
        folder = base / path.lstrip("/")
        folders = [folder, *(p for p in folder.parents if p == base or base in p.parents)]
        found += [(f"/{p.relative_to(base)}".replace("/.", "/"), p) for p in folders]
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
