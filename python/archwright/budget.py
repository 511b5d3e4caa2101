"""Kernel budgets: what each kernel may take, by kernel and toolchain (`csrc/<component>/budget.<target>.toml`).

A new compiler changes kernels without a word: with nvcc 13.1.115 no decode kernel of flash_mla spills, with 13.2.86 two
do. So a wheel's kernels are compared with figures that somebody looked at and committed.

The kernels of an AOT pack follow from the shapes that somebody asked for. So a pack's budget is by family: one line for
all instances of a kernel template, with the largest figures among them.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from .demangle import demangle, short_name, stable_name
from .errors import fail
from .kernels import KernelFacts
from .project import replace_text, write_errors

__all__ = ["Budget", "Limits", "budget_path", "check_budget", "read_budget", "write_budget"]

_HEAD = """\
# Kernel budget of {component} for {target}: what each kernel may take with one nvcc, for one architecture.
# Registers per thread; stack, spill stores and spill loads in bytes. Written by
#   archwright inspect --write-budget dist/{target}/*.whl
# which replaces the lines of the wheel's own nvcc and architectures. Look at the difference before committing it.
schema = 1
"""


@dataclass(frozen=True, order=True)
class Limits:
    registers: int
    stack: int
    stores: int
    loads: int

    def __or__(self, other: Limits) -> Limits:
        return Limits(*map(max, astuple(self), astuple(other)))


#: (nvcc release, architecture) -> kernel -> limits
Budget = Mapping[tuple[str, str], Mapping[str, Limits]]


def budget_path(folder: Path, target: str) -> Path:
    return folder / f"budget.{target}.toml"


def read_budget(path: Path) -> Budget:
    """The budget in the file at `path`; empty when there is none. Raises AW108 when it is not valid."""
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        budget: dict[tuple[str, str], dict[str, Limits]] = {}
        for kernel, lines in data.get("kernels", {}).items():
            for toolchain, values in lines.items():
                nvcc, _, arch = toolchain.partition(" ")
                budget.setdefault((nvcc, arch), {})[kernel] = Limits(**{k: int(v) for k, v in values.items()})
        if data.get("schema") != 1:
            raise ValueError("schema is not 1")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise fail(
            "AW108",
            found=f"{path}: {error}",
            needed='lines like `"13.2.86 sm_100a" = { registers = 168, stack = 0, stores = 0, loads = 0 }`',
            why="a budget that is not read limits nothing",
            fix="restore the file from git, or delete it and write it anew: `archwright inspect --write-budget WHEEL`",
        ) from error
    return budget


def needs_of(kernels: Iterable[KernelFacts], *, families: bool = False) -> dict[str, dict[str, Limits]]:
    """Architecture -> kernel (or family) -> what it takes: the largest figures of all that have the name."""
    found: dict[str, dict[str, Limits]] = {}
    for kernel in kernels:
        takes = Limits(kernel.registers, kernel.stack, kernel.spill_stores or 0, kernel.spill_loads or 0)
        mine = found.setdefault(kernel.arch, {})
        name = _family(kernel.name) if families else stable_name(kernel.name)
        mine[name] = mine[name] | takes if name in mine else takes
    return found


def _family(name: str) -> str:
    """The kernel's name without namespaces, template arguments and parameters."""
    return re.split(r"[<(]", short_name(demangle(name), len(name) + 200))[0]


def check_budget(budget: Budget, kernels: Iterable[KernelFacts], nvcc: str, *, families: bool = False) -> list[str]:
    """What is outside the budget, one line a kernel; first what an unknown toolchain changed.

    With `families` the budget is by family, and one whose shapes were not asked for may be absent.
    """
    kernels = list(kernels)
    problems = [f"{_label(k.name)} ({k.arch}): its spills are not known" for k in kernels if k.spill_stores is None]
    problems += [f"{_label(k.name)} ({k.arch}): ptxas: {loss}" for k in kernels for loss in k.losses]
    for arch, needs in sorted(needs_of(kernels, families=families).items()):
        limits = budget.get((nvcc, arch))
        if limits is None:
            problems += _unknown_toolchain(budget, needs, nvcc, arch)
            continue
        for name, takes in needs.items():
            if name not in limits:
                problems.append(f"{_label(name)} ({arch}): not in the budget of nvcc {nvcc}: {_words(takes)}")
            elif above := _above(takes, limits[name]):
                problems.append(f"{_label(name)} ({arch}): {above}")
        absent = [] if families else sorted(limits.keys() - needs)
        problems += [f"{_label(name)} ({arch}): in the budget, not in the wheel" for name in absent]
    return list(dict.fromkeys(problems))  # a kernel may be in several cubins


def _unknown_toolchain(budget: Budget, needs: Mapping[str, Limits], nvcc: str, arch: str) -> list[str]:
    known = sorted((toolchain for toolchain, its_arch in budget if its_arch == arch), key=_release)
    problems = [f"no budget for nvcc {nvcc}, {arch}" + (f"; there is one for {', '.join(known)}" if known else "")]
    if known:
        before = budget[known[-1], arch]
        for name, takes in needs.items():
            if name in before and takes != before[name]:
                problems.append(f"{_label(name)} ({arch}), {known[-1]} -> {nvcc}: {_change(before[name], takes)}")
            elif name not in before:
                problems.append(f"{_label(name)} ({arch}): new with nvcc {nvcc}: {_words(takes)}")
        problems += [f"{_label(name)} ({arch}): gone with nvcc {nvcc}" for name in sorted(before.keys() - needs)]
    return problems


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


_NAMES = {"registers": "registers", "stack": "bytes of stack", "stores": "bytes of spill stores", "loads": "of loads"}


def _words(limits: Limits) -> str:
    return ", ".join(f"{getattr(limits, field.name)} {_NAMES[field.name]}" for field in fields(limits))


def _above(takes: Limits, limit: Limits) -> str:
    pairs = ((field.name, getattr(takes, field.name), getattr(limit, field.name)) for field in fields(takes))
    return ", ".join(f"{has} {_NAMES[name]} (budget {may})" for name, has, may in pairs if has > may)


def _change(old: Limits, new: Limits) -> str:
    pairs = ((field.name, getattr(old, field.name), getattr(new, field.name)) for field in fields(old))
    return ", ".join(f"{was} -> {now} {_NAMES[name]}" for name, was, now in pairs if was != now)


def _label(name: str) -> str:
    return short_name(demangle(name), 100)


def write_budget(
    path: Path, kernels: Iterable[KernelFacts], nvcc: str, component: str, target: str, *, families: bool = False
) -> None:
    """Write what `kernels` take as the budget of `nvcc`, for the architectures that they are of; keep other lines.

    Raises AW418 when the spills of a kernel are not known: a budget must not be made of guesses.
    """
    kernels = list(kernels)
    if unknown := next((k for k in kernels if k.spill_stores is None), None):
        raise fail(
            "AW418",
            found=f"no spills recorded for {_label(unknown.name)}",
            needed="a wheel that `archwright build` made, with ptxas's report of every kernel",
            why="a budget of unknown figures would let every spill pass",
            fix="build the wheel again and write the budget from it",
        )
    budget = {key: dict(limits) for key, limits in read_budget(path).items()}
    for arch, needs in needs_of(kernels, families=families).items():
        budget[nvcc, arch] = needs
    rows: dict[str, list[str]] = {}
    for (release, arch), limits in sorted(budget.items()):
        for name, limit in limits.items():
            values = ", ".join(f"{field.name} = {getattr(limit, field.name)}" for field in fields(limit))
            rows.setdefault(name, []).append(f'"{release} {arch}" = {{ {values} }}')
    text = _HEAD.format(component=component, target=target)
    for name in sorted(rows):
        text += f"\n# {short_name(demangle(name), 110)}\n[kernels.{json.dumps(name)}]\n" + "\n".join(rows[name]) + "\n"
    with write_errors(path):
        replace_text(path, text)
