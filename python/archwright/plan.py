"""The plan of a build: which units, how many at once, in how much memory, and about how long."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from .components import Component, Unit
from .errors import fail
from .targets import Gencode, Target

__all__ = ["MEMORY_SHARE", "Plan", "available_cores", "available_memory", "make_plan", "scaled_units"]

#: Never plan for more than this share of the memory that the process may use.
MEMORY_SHARE = 0.85

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Plan:
    """What a build will do. Memory in MiB, times in seconds; `largest` is the unit with the highest peak."""

    target: str
    tier: str
    gencodes: tuple[str, ...]
    components: tuple[str, ...]
    host_files: int
    device_files: int
    jobs: int
    memory_mib: int
    peak_mib: int
    largest: str
    cpu_seconds: float
    estimate: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def make_plan(
    target: Target,
    chosen: tuple[Component, ...],
    gencodes: tuple[Gencode, ...],
    *,
    jobs: int | None = None,
    memory_mib: int | None = None,
) -> Plan:
    """Plan the build of `chosen`. Raises AW309 when one unit alone needs more memory than there is."""
    units = [unit for component in chosen for unit in scaled_units(component, gencodes)]
    jobs = jobs or available_cores()
    budget = math.floor(available_memory() * MEMORY_SHARE / 2**20) if memory_mib is None else memory_mib
    largest = max(units, key=lambda unit: unit.mib)
    if largest.mib > budget:
        raise fail(
            "AW309",
            found=f"{budget / 1024:.1f} GiB to plan with "
            + ("(--memory)" if memory_mib else f"({MEMORY_SHARE:.0%} of what this process may use)"),
            needed=f"{largest.mib / 1024:.1f} GiB for {largest.path}",
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
        host_files=sum(not unit.is_device for unit in units),
        device_files=sum(unit.is_device for unit in units),
        jobs=jobs,
        memory_mib=budget,
        peak_mib=min(sum(peaks), budget),
        largest=largest.path,
        cpu_seconds=total,
        estimate=estimate,
    )


def scaled_units(component: Component, gencodes: tuple[Gencode, ...]) -> tuple[Unit, ...]:
    """The component's units with the time that they take for all `gencodes` (compiled one after another)."""
    count = max(1, len(gencodes))
    return tuple(Unit(u.path, u.seconds * (count if u.is_device else 1), u.mib) for u in component.units)


def available_cores() -> int:
    """Cores that this process may use: its affinity, and its cgroup's CPU quota rounded up."""
    cores = len(os.sched_getaffinity(0))
    for folder in _cgroups():
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        if quota.isdigit() and period.strip().isdigit():
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def available_memory() -> int:
    """Bytes that this process may still use: what the system has, and what its cgroups leave."""
    available = int(psutil.virtual_memory().available)
    for folder in _cgroups():
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit():
            available = min(available, max(0, int(limit) - int(used) + _reclaimable(folder)))
    return available


def _reclaimable(folder: Path) -> int:
    """Page cache that counts as used but is given back under pressure."""
    for line in _read(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _cgroups() -> list[Path]:
    """The folders of this process's cgroup and its parents (version 2), or of its memory group (version 1)."""
    folders: list[Path] = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        base = _CGROUP if not controllers else _CGROUP / "memory" if "memory" in controllers.split(",") else None
        if base is not None:
            folder = base / path.lstrip("/")
            folders += [folder, *(p for p in folder.parents if p == base or base in p.parents)]
    return folders


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
