"""Preflight in seconds: is this machine fit to build for a target, and if not, what exactly is to be done?"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from .compiler import MINIMUM, find_compiler
from .components import components
from .debian import COMPILER_RELEASE, can_provision
from .environment import Environment, find_environment, has_locks
from .errors import ArchwrightError
from .interpreter import find_python
from .plan import MEMORY_SHARE, available_cores, available_memory
from .process import stray_variables
from .project import cache_dir, free_bytes
from .targets import Target, target_table

__all__ = ["Finding", "Level", "examine", "is_fit"]


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    """One check's result. A finding that is not ok names its code and its fix."""

    check: str
    level: Level
    found: str
    needed: str = ""
    why: str = ""
    fix: str = ""
    code: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "level": str(self.level)}


def examine(target: Target, *, python: str | None = None) -> tuple[Finding, ...]:
    """Run every check for `target`, in order. Changes nothing and needs no network."""
    checks: list[Callable[[], Iterator[Finding]]] = [
        lambda: _system(target),
        lambda: _python(python),
        _compiler,
        _resources,
        _stray,
        _compiler_cache,
        lambda: _environment(target, python),
        _device,
    ]
    return tuple(finding for check in checks for finding in check())


def is_fit(findings: tuple[Finding, ...]) -> bool:
    return all(finding.level is not Level.FAIL for finding in findings)


def _from_error(check: str, error: ArchwrightError) -> Finding:
    return Finding(check, Level.FAIL, error.found, error.needed, error.why, error.fix, error.code)


def _system(target: Target) -> Iterator[Finding]:
    system, machine = platform.system(), platform.machine()
    known = target_table().processors
    if system != "Linux" or machine not in known:
        yield Finding(
            "system",
            Level.FAIL,
            f"{system} on {machine}",
            f"Linux on {' or '.join(known)}",
            "the kernel libraries are for Linux servers",
            "build on a Linux machine",
            "AW310",
        )
        return
    libc, version = platform.libc_ver()
    release = (
        platform.freedesktop_os_release().get("PRETTY_NAME", "Linux") if Path("/etc/os-release").exists() else "Linux"
    )
    yield Finding("system", Level.OK, f"{release}, {machine}, {libc} {version}")
    pending = [c for c in _cells(target, machine) if c.pending]
    ready = [c for c in _cells(target, machine) if c.available]
    if not ready:
        reasons = "; ".join(sorted({c.pending or c.reason for c in _cells(target, machine)}))
        yield Finding(
            "cells",
            Level.FAIL,
            f"no component of {target.name} can be built on {machine} yet",
            "at least one cell that is built today",
            reasons,
            "run `archwright targets` for the matrix",
            "AW105",
        )
    else:
        later = f"; not yet: {', '.join(c.component for c in pending)}" if pending else ""
        yield Finding("cells", Level.OK, f"can be built: {', '.join(c.component for c in ready)}{later}")


def _cells(target: Target, machine: str) -> list[Any]:
    return [
        cell
        for component in components().values()
        for cell in component.cells
        if cell.target == target.name and cell.processor == machine
    ]


def _python(named: str | None) -> Iterator[Finding]:
    try:
        found = find_python(named)
    except ArchwrightError as error:
        yield _from_error("python", error)
        return
    yield Finding("python", Level.OK, f"CPython {found.version} at {found.path}, with headers")


def _compiler() -> Iterator[Finding]:
    try:
        found = find_compiler()
    except ArchwrightError as error:
        yield _from_error("compiler", error)
        return
    if found is not None and not found.has_libdw:
        yield Finding(
            "libdw",
            Level.FAIL,
            f"{found.cxx} does not find elfutils/libdwfl.h",
            "libdw's headers",
            "DeepJIT (inside DeepGEMM and DeepEP) includes them",
            "`apt install libdw-dev`, or unset CXX to use the provisioned compiler",
            "AW313",
        )
    elif found is not None:
        yield Finding(
            "compiler", Level.OK, f"GCC {found.version} at {found.cxx} (from {found.origin}), libdw headers found"
        )
    elif can_provision():
        yield Finding(
            "compiler",
            Level.OK,
            f"no GCC >= {MINIMUM} with libdw headers here: GCC 14 of Debian {COMPILER_RELEASE} is used, in the cache",
        )
    else:
        yield Finding(
            "compiler",
            Level.FAIL,
            f"no GCC >= {MINIMUM}, and this is not a Debian from whose packages one could be provisioned",
            f"GCC {MINIMUM} or newer and libdw's headers",
            "upstream's host code is C++20 and includes <format>",
            "install them (`dnf install gcc-toolset-14 elfutils-devel`), or name a g++ in CXX",
            "AW303",
        )


def _resources() -> Iterator[Finding]:
    cores, memory = available_cores(), available_memory() * MEMORY_SHARE / 2**30
    largest = max((u for c in components().values() for u in c.units), key=lambda u: u.mib)
    if largest.mib / 1024 > memory:
        yield Finding(
            "memory",
            Level.FAIL,
            f"{memory:.1f} GiB to plan with ({MEMORY_SHARE:.0%} of what may be used), {cores} cores",
            f"{largest.mib / 1024:.1f} GiB for {largest.path}",
            "the kernel would kill the compiler after minutes of work",
            "free memory, raise the cgroup's limit, or leave that component out",
            "AW309",
        )
    else:
        yield Finding("memory", Level.OK, f"{memory:.1f} GiB to plan with, {cores} cores")
    folder = cache_dir()
    free = free_bytes(folder) / 1e9
    if free < 15:
        yield Finding(
            "disk",
            Level.FAIL,
            f"{free:.1f} GB free at {folder}",
            "15 GB for the environment, the sources and the objects",
            "a disk that fills up halfway wastes the time until then",
            "free some space, or point ARCHWRIGHT_CACHE at a larger disk",
            "AW308",
        )
    else:
        yield Finding("disk", Level.OK, f"{free:.0f} GB free at {folder}")


def _stray() -> Iterator[Finding]:
    stray = stray_variables()
    if stray:
        yield Finding(
            "variables",
            Level.NOTE,
            ", ".join(f"{name}={value}" for name, value in stray.items()),
            "none that steer compilers",
            "builds do not see them, so they change nothing (CXX only chooses the compiler for `env create`)",
            f"nothing to do; `unset {' '.join(stray)}` quiets this note",
        )
    else:
        yield Finding("variables", Level.OK, "none that steer compilers")


def _compiler_cache() -> Iterator[Finding]:
    found = shutil.which("ccache") or shutil.which("sccache")
    if found:
        yield Finding("compiler cache", Level.OK, found)
    else:
        yield Finding(
            "compiler cache",
            Level.NOTE,
            "neither ccache nor sccache on PATH",
            "",
            "a fresh clone compiles everything again",
            "`apt install ccache`",
        )


def _environment(target: Target, python: str | None) -> Iterator[Finding]:
    if not has_locks(target):
        yield Finding(
            "environment",
            Level.FAIL,
            f"envs/{target.name} has no locks yet",
            "a toolchain lock and a runtime lock",
            "environments are only made from locks",
            "use target sm100; the others follow with their issues (`archwright targets`)",
            "AW307",
        )
        return
    found = find_environment(target, python=python)
    if found is None:
        yield Finding(
            "environment",
            Level.NOTE,
            "not created yet for these locks, this Python and this compiler",
            "",
            "`build` creates it first (about 8 GB; half a minute with a warm package cache)",
            f"`archwright env create {target.name}` does it now",
        )
        return
    yield Finding("environment", Level.OK, str(found.path))
    yield Finding("toolchain", Level.OK, f"nvcc {found.nvcc}, GCC {found.gcc}")
    yield from _libraries(found)


def _libraries(found: Environment) -> Iterator[Finding]:
    yield Finding("torch", Level.OK, f"{found.torch} (read from its metadata, not imported)")
    floor = components()["deep_ep"].nccl or "0"
    good = [int(p) for p in found.nccl.split(".")] >= [int(p) for p in floor.split(".")]
    yield Finding(
        "nccl",
        Level.OK if good else Level.FAIL,
        found.nccl,
        f"{floor} or newer",
        "" if good else "DeepEP uses functions that older releases lack",
        "" if good else "recreate the environment from the lock",
        "" if good else "AW312",
    )


def _device() -> Iterator[Finding]:
    driver = Path("/proc/driver/nvidia/version").exists() or Path("/dev/davinci_manager").exists()
    text = (
        "a driver is loaded" if driver else "none: wheels compile here, but `correct` and `performs` cannot be verified"
    )
    yield Finding("device", Level.NOTE, text, "", "" if driver else "no device is needed to build", "")
