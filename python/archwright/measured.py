"""What compiles cost on this machine: measured by every build, kept per toolchain in the cache, used by the next plan.

    <cache>/measured/nvcc<release>-gcc<version>-<gencodes>/<component>.json

It is only a record: one that is missing or damaged is ignored, and the recipe's figures are used. Each set of gencodes
has its own, so that a measurement for two is never multiplied again.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock

from .components import Component, Unit
from .pool import Measured
from .project import cache_dir, project_root, replace_text
from .sources import sha256_of
from .targets import Gencode, Target

if TYPE_CHECKING:
    from .environment import Environment

__all__ = ["Toolchain", "find_toolchain", "measured_units", "remember", "scaled_units", "units_for"]

#: Added to a measured peak: samples of a process tree can miss its highest point.
_MARGIN = 1.03


@dataclass(frozen=True)
class Toolchain:
    """What the cost of a compile depends on, besides the source."""

    nvcc: str
    gcc: str
    gencodes: tuple[str, ...]

    @classmethod
    def of(cls, environment: Environment, gencodes: tuple[Gencode, ...]) -> Toolchain:
        return cls(environment.nvcc, environment.gcc, tuple(g.name for g in gencodes))

    def key(self, component: Component) -> str:
        gencodes = "+".join(sorted(self.gencodes)) if component.has_device_code else "host"
        return f"nvcc{self.nvcc}-gcc{self.gcc}-{gencodes}"


def find_toolchain(target: Target, gencodes: tuple[Gencode, ...]) -> Toolchain | None:
    """The toolchain of the newest environment in the cache that has the target's locks of now; None without one.

    It only reads: a plan is made before the environment, and in milliseconds. The pool's figures come from the
    environment that is really used.
    """
    folder = project_root() / "envs" / target.name
    locks = {p.stem: sha256_of(p) for p in (folder / "toolchain.lock", folder / "runtime.lock") if p.is_file()}
    found = []
    for record in (cache_dir() / "envs").glob(f"{target.name}-*/env.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data = json.loads(record.read_text(encoding="utf-8"))
            if data["locks"] == locks:
                found.append((record.stat().st_mtime, str(data["nvcc"]), str(data["gcc"])))
    if not found:
        return None
    _, nvcc, gcc = max(found)
    return Toolchain(nvcc, gcc, tuple(g.name for g in gencodes))


def scaled_units(component: Component, gencodes: tuple[Gencode, ...]) -> tuple[Unit, ...]:
    """The recipe's units with the time that they take for all `gencodes` (compiled one after another)."""
    count = max(1, len(gencodes))
    return tuple(replace(u, seconds=u.seconds * (count if u.is_device else 1)) for u in component.units)


def units_for(component: Component, gencodes: tuple[Gencode, ...], toolchain: Toolchain | None) -> tuple[Unit, ...]:
    """The component's units with what they cost: as measured here where known, else as the recipe says."""
    known = measured_units(component, toolchain)
    return tuple(known.get(unit.path, unit) for unit in scaled_units(component, gencodes))


def measured_units(component: Component, toolchain: Toolchain | None) -> dict[str, Unit]:
    """Those of the component's units that were compiled here with `toolchain`, by path."""
    if toolchain is None:
        return {}
    known = _load(_record(component, toolchain), component.version)
    return {
        unit.path: replace(unit, seconds=cost["seconds"], mib=math.ceil(cost["mib"] * _MARGIN))
        for unit in component.units
        if (cost := known.get(unit.path))
    }


def remember(toolchain: Toolchain, component: Component, tree: Path, measured: Iterable[Measured]) -> None:
    """Record what the units of `component`, unpacked at `tree`, took. Answers of a compiler cache say nothing of it."""
    paths = {str(tree / unit.path): unit.path for unit in component.units}
    costs = {
        paths[unit.source]: {"seconds": round(unit.seconds, 1), "mib": unit.mib}
        for unit in measured
        if unit.source in paths and not unit.cached
    }
    record = _record(component, toolchain)
    if not costs:
        return
    with contextlib.suppress(OSError, filelock.Timeout):  # a full disk or a cache that cannot be written: no record
        record.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(record.with_suffix(".lock"), timeout=10):  # two builds at once: both are kept
            known = _load(record, component.version) | costs
            data = {"version": component.version, "units": dict(sorted(known.items()))}
            replace_text(record, json.dumps(data, indent=1))


def _record(component: Component, toolchain: Toolchain) -> Path:
    return cache_dir() / "measured" / toolchain.key(component) / f"{component.name}.json"


def _load(record: Path, version: str) -> dict[str, dict[str, Any]]:
    """The costs in `record`, without entries that make no sense; those of another version of the source are stale."""
    try:
        data = json.loads(record.read_text(encoding="utf-8"))
        units = dict(data["units"]) if data["version"] == version else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {str(path): cost for path, cost in units.items() if _makes_sense(cost)}


def _makes_sense(cost: object) -> bool:
    if not isinstance(cost, Mapping):
        return False
    seconds, mib = cost.get("seconds"), cost.get("mib")
    return isinstance(seconds, int | float) and 0 <= seconds < 1e6 and isinstance(mib, int) and 0 < mib < 1 << 24
