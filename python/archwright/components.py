"""Component recipes (`csrc/<component>/component.toml`) and the matrix of cells that they span."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from .errors import fail
from .project import project_root
from .tables import load_table
from .targets import Target, TargetTable, Tier, target_table

__all__ = [
    "Cell",
    "CellState",
    "Component",
    "Operation",
    "Pack",
    "Unit",
    "Unreached",
    "available_components",
    "components",
    "find_component",
    "matrix",
    "select_cells",
]

#: Whose devices a recipe is written for where it says nothing else.
_MAIN_VENDOR = "nvidia"


class CellState(StrEnum):
    BUILD = "build"
    EXPERIMENTAL = "experimental"
    REFUSED = "refused"


@dataclass(frozen=True)
class Unit:
    """One translation unit: path inside the source tree, seconds on one core and peak memory in MiB.

    Seconds are for one gencode; device code takes that long again for each further gencode. `process` is the name of
    the AOT pack's process that the unit stands for, if it is no file of sources.
    """

    path: str
    seconds: float
    mib: int
    process: str = ""

    @property
    def label(self) -> str:
        return self.process or self.path

    @property
    def is_device(self) -> bool:
        return self.path.endswith((".cu", ".asc"))


@dataclass(frozen=True)
class Cell:
    """Component x target x processor: what happens when someone asks for it."""

    component: str
    target: str
    processor: str
    state: CellState
    reason: str = ""
    pending: str = ""

    @property
    def available(self) -> bool:
        return self.state is not CellState.REFUSED and not self.pending


@dataclass(frozen=True)
class Operation:
    """One operation of an AOT pack: a generator function of its case files, and the entry points that it calls.

    `process` is the name of the process that runs it, its own or one for several. `targets` are those that have kernels
    for it. Seconds are wall time of all its cases with an empty JIT cache, `mib` the peak memory with its compilers.
    """

    name: str
    process: str
    calls: tuple[str, ...]
    targets: tuple[str, ...]
    seconds: float
    mib: int


@dataclass(frozen=True)
class Unreached:
    """An entry point that no operation of a pack can call, and why."""

    call: str
    reason: str


@dataclass(frozen=True)
class Pack:
    """What makes a component an AOT pack: kernels of a library's run-time compiler instead of an extension module.

    `jit` is `tilelang` or the prefix of DeepJIT's variables; `library` the component whose wheel is run;
    `libraries` the distributions and versions that the kernels fit, `optional` those that need not be installed; `nccl`
    says that the operations are one rank of a group. `devices` maps each target to the device that is simulated by
    default, `arches` compute capabilities to the architecture that upstream compiles for. `settings` are entry points
    that start no kernel, as upstream's source shows: they set or read something on the host.
    """

    jit: str
    library: str
    libraries: dict[str, str]
    optional: dict[str, str]
    cases: tuple[str, ...]
    devices: dict[str, str]
    arches: dict[str, str]
    operations: tuple[Operation, ...]
    nccl: bool = False
    settings: tuple[str, ...] = ()
    unreached: tuple[Unreached, ...] = ()

    @property
    def processes(self) -> dict[str, tuple[Operation, ...]]:
        """What runs together, by the process's name."""
        names = dict.fromkeys(operation.process for operation in self.operations)
        return {name: tuple(op for op in self.operations if op.process == name) for name in names}

    @property
    def units(self) -> tuple[Unit, ...]:
        """Its processes as units of a build; their paths are those of what each is told, in the build folder."""
        return tuple(
            Unit(f"cases/{name}.json", sum(op.seconds for op in together), max(op.mib for op in together), name)
            for name, together in self.processes.items()
        )


@dataclass(frozen=True)
class Component:
    """One upstream library that becomes one wheel; the fields mirror `component.toml`.

    `origin` is the distribution whose source archive is fetched: the wheel's own, but for AOT packs. `editions` are the
    recipe as it is for other vendors than NVIDIA.
    """

    name: str
    distribution: str
    origin: str
    package: str
    version: str
    summary: str
    license: str
    sha256: str
    root: str
    expect: tuple[str, ...]
    nccl: str | None
    torch_npu: str | None
    torch: bool
    driver: bool
    requires: tuple[str, ...]
    license_files: tuple[str, ...]
    wheel_expect: tuple[str, ...]
    wheel_ptx: tuple[str, ...]
    wheel_paths: tuple[str, ...]
    max_mib: float
    extension: str | None
    nvcc_floor: str | None
    units: tuple[Unit, ...]
    bundles: tuple[dict[str, str], ...]
    cells: tuple[Cell, ...]
    pack: Pack | None = None
    editions: Mapping[str, Component] = field(default_factory=dict)

    def of(self, target: Target) -> Component:
        """The recipe as it is for the devices of `target`'s vendor."""
        return self.editions.get(target.vendor, self)

    @property
    def folder(self) -> Path:
        return project_root() / "csrc" / self.name

    @property
    def has_device_code(self) -> bool:
        return self.pack is not None or any(unit.is_device for unit in self.units)

    @property
    def host_only(self) -> Component:
        """The recipe with nothing but its host files. Raises AW109 when it has none."""
        units = tuple(unit for unit in self.source_units if not unit.is_device)
        if not units:
            raise fail(
                "AW109",
                found=f"--host-only for {self.name}",
                needed="a component with host files",
                why="its kernels are generated: there is nothing else to compile",
                fix="leave it out",
            )
        return replace(self, units=units)

    @property
    def source_units(self) -> tuple[Unit, ...]:
        """The units that are files of the source tree; those of a pack lie in its build folder."""
        return () if self.pack else self.units

    def unit_root(self, tree: Path, build: Path) -> Path:
        """The folder that the units' paths are relative to."""
        return build if self.pack else tree


@functools.cache
def components() -> dict[str, Component]:
    """Every recipe under `csrc/`, by name and in name order. Raises AW108 for one that is not valid."""
    paths = sorted((project_root() / "csrc").glob("*/component.toml"))
    return {component.name: component for component in map(_load, paths)}


def matrix() -> tuple[Cell, ...]:
    """The whole matrix: every component on every target and processor."""
    return tuple(cell for component in components().values() for cell in component.cells)


def available_components(target: Target, processor: str) -> tuple[Component, ...]:
    """Those that can be built for `target` on `processor` today, as they are for it."""
    return tuple(
        component.of(target)
        for component in components().values()
        if any(c.available for c in component.cells if (c.target, c.processor) == (target.name, processor))
    )


def find_component(name: str) -> Component:
    """The recipe called `name`. Raises AW103 for an unknown one."""
    known = components()
    if name not in known:
        raise fail(
            "AW103",
            found=f"component '{name}'",
            needed=f"one of {', '.join(known)}",
            why="each upstream library is built by a recipe of its own",
            fix="run `archwright targets` for the matrix",
        )
    return known[name]


def select_cells(
    target: Target,
    names: tuple[str, ...],
    processor: str,
    *,
    experimental: bool = False,
    packs: bool = False,
    host_only: bool = False,
) -> tuple[Component, ...]:
    """The components to build for `target` on `processor`: those that are AOT packs, or those that are not.

    Without names these are all cells that can be built. Raises AW103 for an unknown component, AW104 for a
    refused cell, AW105 for one that is not built yet, AW106 when the experimental tier was not asked for and AW109 for
    a pack among the others or the other way round. With `host_only` they have nothing but their host files, and a cell
    that is not built yet can be chosen.
    A cell that was asked for is produced or is an error; it is never skipped.
    """
    kind = {name: component for name, component in components().items() if bool(component.pack) == packs}
    chosen = [find_component(name) for name in (dict.fromkeys(names) or kind)]
    for component in chosen:
        if component.name not in kind:
            command = "build" if packs else "aot"
            raise fail(
                "AW109",
                found=component.name,
                needed=f"one of {', '.join(kind)}",
                why="kernels compiled ahead of time come from `archwright aot`, libraries from `archwright build`",
                fix=f"`archwright {command} {target.name} {component.name}`",
            )
    cells = {c.component: c for c in matrix() if c.target == target.name and c.processor == processor}
    if host_only:
        cells = {name: replace(cell, pending="") for name, cell in cells.items()}
    if not names:
        buildable = [component for component in chosen if cells[component.name].available]
        chosen = buildable or [component for component in chosen if cells[component.name].pending] or chosen
    for component in chosen:
        _check_available(cells[component.name], target, experimental)
    meant = (component.of(target) for component in chosen)
    return tuple(component.host_only if host_only else component for component in meant)


def _check_available(cell: Cell, target: Target, experimental: bool) -> None:
    where = f"{cell.component} for {cell.target} on {cell.processor}"
    if cell.state is CellState.REFUSED:
        raise fail(
            "AW104",
            found=where,
            needed="a cell that can be built",
            why=cell.reason,
            fix=f"name the other components of {cell.target}, or see `archwright targets {cell.target}`",
        )
    if cell.pending:
        raise fail(
            "AW105",
            found=where,
            needed=f"a cell that is built today (its plan in the matrix: {cell.state})",
            why=cell.pending,
            fix="run `archwright targets` to see what can be built now",
        )
    if (cell.state is CellState.EXPERIMENTAL or target.tier is Tier.EXPERIMENTAL) and not experimental:
        raise fail(
            "AW106",
            found=where,
            needed="--experimental",
            why="upstream does not list this target: its wheels are marked experimental in every place",
            fix="add --experimental if that is what you want",
        )


def _load(path: Path) -> Component:
    data = load_table(path, "component")
    table = target_table()
    missing = table.targets.keys() ^ data["cells"].keys()
    if missing or data["name"] != path.parent.name:
        raise fail(
            "AW108",
            found=f"{path}: name '{data['name']}', cells that do not match the target table: {sorted(missing)}",
            needed="the folder's name, and one cell for every target",
            why="the whole matrix is written down, cells that are refused included",
            fix="correct the recipe",
        )
    editions = {
        vendor: _component(_edition(data, own), vendor, table, {}) for vendor, own in data.get("vendors", {}).items()
    }
    return _component(data, _MAIN_VENDOR, table, editions)


def _edition(data: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """The recipe with what one of its `[vendors]` says in place of the same words above."""
    merged = {
        key: data[key] | value if isinstance(value, dict) and key in data else value for key, value in own.items()
    }
    return data | merged


def _component(data: dict[str, Any], vendor: str, table: TargetTable, editions: Mapping[str, Component]) -> Component:
    wheel, pack = data["wheel"], _pack(data.get("pack"))
    units = [unit for unit in data.get("units", ()) if unit.get("vendor", vendor) == vendor]
    return Component(
        name=data["name"],
        distribution=data["distribution"],
        origin=data["source"].get("distribution", data["distribution"]),
        package=data["package"],
        version=data["version"],
        summary=data["summary"],
        license=data["license"],
        sha256=data["source"]["sha256"],
        root=data["source"]["root"],
        expect=tuple(data["source"]["expect"]),
        nccl=wheel.get("nccl"),
        torch_npu=wheel.get("torch_npu"),
        torch=wheel.get("torch", False),
        driver=wheel.get("driver", False),
        requires=tuple(wheel["requires"]),
        license_files=tuple(wheel.get("licenses", ())),
        wheel_expect=tuple(wheel["expect"]),
        wheel_ptx=tuple(wheel.get("ptx", ())),
        wheel_paths=tuple(wheel.get("paths", ())),
        max_mib=wheel["max_mib"],
        extension=data.get("extension"),
        nvcc_floor=data.get("nvcc_floor"),
        units=pack.units if pack else tuple(Unit(u["path"], u["seconds"], u["mib"]) for u in units),
        bundles=tuple(data.get("bundles", ())),
        cells=tuple(
            Cell(
                component=data["name"],
                target=target,
                processor=processor,
                state=CellState(entry["state"]),
                reason=entry.get("reason", ""),
                pending=entry.get("pending", {}).get(processor, ""),
            )
            for target, entry in data["cells"].items()
            for processor in table.processors
        ),
        pack=pack,
        editions=editions,
    )


def _pack(data: dict[str, Any] | None) -> Pack | None:
    if data is None:
        return None
    return Pack(
        jit=data["jit"],
        library=data["library"],
        libraries=data["libraries"],
        optional=dict(data.get("optional", {})),
        cases=tuple(data["cases"]),
        devices=data["devices"],
        arches=data["arches"],
        operations=tuple(
            Operation(
                o["name"], o.get("process", o["name"]), tuple(o["calls"]), tuple(o["targets"]), o["seconds"], o["mib"]
            )
            for o in data["operations"]
        ),
        nccl=data.get("nccl", False),
        settings=tuple(data.get("settings", ())),
        unreached=tuple(Unreached(**entry) for entry in data.get("unreached", ())),
    )
