"""Preflight in seconds: is this machine fit to build for a target, and if not, what exactly is to be done?

This module has the list of checks, and those of the target's environment; those of the machine are in machine.py,
folders.py and proxies.py, those of CANN in cannchecks.py. Each finding has the code of the page that explains it.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterator

from .cannchecks import check_cann, check_torch_npu
from .compiler import NVCC_MAXIMUM
from .components import available_components, matrix
from .environment import Environment, find_environment, has_locks
from .errors import ArchwrightError
from .findings import Finding, Level, Repair, from_error, is_fit
from .folders import check_disks, check_folders, check_temporary
from .lockfile import read_lock
from .machine import (
    check_compiler,
    check_compiler_cache,
    check_device,
    check_libc,
    check_locale,
    check_memory,
    check_python,
    check_system,
    check_variables,
)
from .process import CommandFailed
from .project import cache_path, project_root
from .proxies import check_proxy
from .repairs import in_shell, with_tool
from .targets import Target
from .toolkit import check_nvcc_floor, toolkit_releases

__all__ = ["Finding", "Level", "Repair", "examine", "is_fit"]


def examine(target: Target, *, python: str | None = None) -> tuple[Finding, ...]:
    """Run every check for `target`, in order. Changes nothing and needs no network."""
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "system": check_system,
        "C library": check_libc,
        "cells": lambda: _cells(target),
        "locale": check_locale,
        "folders": lambda: check_folders(target),
        "temporary folder": check_temporary,
        "disk": lambda: check_disks(target),
        "python": lambda: check_python(python),
        "compiler": check_compiler,
        "memory": lambda: check_memory(target),
        "proxy": check_proxy,
        "variables": check_variables,
        "compiler cache": check_compiler_cache,
        "environment": lambda: _environment(target, python),
    }
    if target.is_ascend:
        checks["CANN"] = lambda: check_cann(target)
    checks["device"] = check_device
    findings: list[Finding] = []
    for name, check in checks.items():
        try:
            findings += check()
        except ArchwrightError as error:
            findings.append(_not_checked(name, error, findings))
    return tuple(findings)


def _not_checked(name: str, error: ArchwrightError, findings: list[Finding]) -> Finding:
    """A check that an error ended: what another row says already is not said again as a failure."""
    if any(f.code == error.code and f.level is Level.FAIL for f in findings):
        return Finding(name, Level.NOTE, "not checked", why=error.found, fix="repair that first", code=error.code)
    return from_error(name, error)


def _cells(target: Target) -> Iterator[Finding]:
    machine = platform.machine()
    cells = [c for c in matrix() if (c.target, c.processor) == (target.name, machine)]
    ready = [c.component for c in cells if c.available]
    pending = [c.component for c in cells if c.pending]
    if ready:
        later = f"; not yet: {', '.join(pending)}" if pending else ""
        yield Finding("cells", Level.OK, f"can be built: {', '.join(ready)}{later}", code="AW105")
        return
    yield Finding(
        "cells",
        Level.FAIL,
        f"no component of {target.name} can be built on {machine} yet",
        "at least one cell that is built today",
        "; ".join(sorted({c.pending or c.reason for c in cells})) or f"no cell is for {machine}",
        "run `archwright targets` for the matrix",
        "AW105",
    )


def _environment(target: Target, python: str | None) -> Iterator[Finding]:
    if not has_locks(target):
        yield Finding(
            "environment",
            Level.FAIL,
            f"envs/{target.name} has no locks yet",
            "a toolchain lock and a runtime lock",
            "environments are only made from locks",
            f"`archwright env lock {target.name}` makes them from their inputs",
            "AW307",
        )
        return
    # without the folder there is none, and nothing needs to be made to say so
    found = find_environment(target, python=python) if (cache_path() / "envs").is_dir() else None
    if found is None:
        yield Finding(
            "environment",
            Level.NOTE,
            "not created yet for these locks, this Python and this compiler",
            "a complete environment",
            "`build` creates it first (about 8 GB; half a minute with a warm package cache)",
            f"`archwright env create {target.name}` does it now",
            "AW307",
            with_tool("env", "create", target.name, *(("--python", python) if python else ())),
        )
    else:
        yield Finding("environment", Level.OK, str(found.path), code="AW307")
    if target.vendor == "nvidia":
        if found is not None:
            yield from _toolkit(found, target)
        yield _gcc_limit(target, found)
    if found is not None:
        yield from _libraries(found, target)
        if target.is_ascend:
            yield from check_torch_npu(found, target)


def _toolkit(found: Environment, target: Target) -> Iterator[Finding]:
    floors = {f"gencode {g.name}": str(g.nvcc) for g in target.gencodes}
    floors |= {
        component.name: component.nvcc_floor
        for component in available_components(target, platform.machine())
        if component.nvcc_floor
    }
    again = with_tool("env", "create", target.name, "--again")
    try:
        check_nvcc_floor(found.nvcc, floors)
        yield Finding("toolchain", Level.OK, f"nvcc {found.nvcc}, GCC {found.gcc}", code="AW305")
    except ArchwrightError as error:
        yield from_error("toolchain", error)
    try:
        release = toolkit_releases(found.toolkit)["nvcc"]
        yield Finding("CUDA release", Level.OK, f"{release} throughout", code="AW311")
    except ArchwrightError as error:
        yield from_error("CUDA release", error, again)
    except (OSError, CommandFailed) as error:
        yield Finding(
            "CUDA release",
            Level.FAIL,
            f"{found.toolkit} is incomplete: {error}",
            "nvcc that runs, and CUDA's headers",
            "a complete environment is never changed by us: something else removed or damaged it",
            f"`archwright env create {target.name} --again`",
            "AW307",
            again,
        )


def _gcc_limit(target: Target, found: Environment | None) -> Finding:
    """The newest GCC that nvcc accepts: what its own header says, else what is known of the locked release."""
    if found is None:
        packages = read_lock(project_root() / "envs" / target.name / "toolchain.lock")
        nvcc = ".".join(str(packages["nvidia-cuda-nvcc"].version).split(".")[:2])
        limit = NVCC_MAXIMUM.get(nvcc)
        text = f"the locked nvcc {nvcc} accepts GCC up to {limit or '(not known before it is installed)'}"
        return Finding("GCC for nvcc", Level.OK, text, code="AW323")
    limit = _header_limit(found)
    if limit is None or int(found.gcc.split(".")[0]) <= limit:
        text = f"GCC {found.gcc}; nvcc {found.nvcc} accepts up to {limit or '(no limit in its headers)'}"
        return Finding("GCC for nvcc", Level.OK, text, code="AW323")
    return Finding(
        "GCC for nvcc",
        Level.FAIL,
        f"GCC {found.gcc} at {found.cxx}",
        f"GCC {limit} or older for nvcc {found.nvcc}",
        "nvcc stops at a newer one in the first compile: unsupported GNU version",
        "name an older g++ in CXX, then create the environment again",
        "AW323",
        in_shell(f"export CXX=g++-{limit}"),
    )


def _header_limit(found: Environment) -> int | None:
    header = found.toolkit / "include" / "crt" / "host_config.h"
    try:
        match = re.search(r"^\s*#\s*if\s+__GNUC__\s*>\s*(\d+)", header.read_text(errors="replace"), re.M)
    except OSError:
        return NVCC_MAXIMUM.get(".".join(found.nvcc.split(".")[:2]))
    return int(match[1]) if match else None


def _libraries(found: Environment, target: Target) -> Iterator[Finding]:
    yield Finding("torch", Level.OK, f"{found.torch} (read from its metadata, not imported)", code="AW307")
    floors = [component.nccl for component in available_components(target, platform.machine()) if component.nccl]
    if not floors:
        return
    floor = max(floors, key=_numbers)
    if _numbers(found.nccl) >= _numbers(floor):
        yield Finding("nccl", Level.OK, found.nccl, f"{floor} or newer", code="AW312")
        return
    yield Finding(
        "nccl",
        Level.FAIL,
        found.nccl or "none",
        f"{floor} or newer",
        "DeepEP uses functions that older releases lack",
        "recreate the environment from the lock",
        "AW312",
        with_tool("env", "create", target.name, "--again"),
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
