"""What changed between two wheels, kernel by kernel: what a new toolchain or a new release did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from .demangle import stable_name
from .gates import Subject
from .kernels import KernelFacts

__all__ = ["Change", "Comparison", "compare"]

_FIELDS = (
    "registers",
    "stack",
    "local",
    "shared",
    "max_threads",
    "code",
    "spill_stores",
    "spill_loads",
    "instructions",
)


@dataclass(frozen=True)
class Change:
    """One kernel whose figures differ: field -> (old, new)."""

    name: str
    arch: str
    fields: dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Comparison:
    """`toolkits` are the compilers' releases; `bytes` the sizes of the two wheels."""

    toolkits: tuple[tuple[str, ...], tuple[str, ...]]
    bytes: tuple[int, int]
    kernels: int
    added: tuple[tuple[str, str], ...]
    removed: tuple[tuple[str, str], ...]
    changed: tuple[Change, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(old: Subject, new: Subject) -> Comparison:
    """Compare the kernels of two wheels by name and architecture."""
    before, after = _by_key(old.code.kernels), _by_key(new.code.kernels)
    changed = []
    for key in sorted(before.keys() & after.keys()):
        fields = {}
        for field in _FIELDS:
            was, now = ([getattr(kernel, field) for kernel in side[key]] for side in (before, after))
            # None: nobody disassembled that wheel, or nobody kept ptxas's report of it
            if was != now and None not in (*was, *now):
                fields[field] = (was[0], now[0]) if len(was) == len(now) == 1 else (was, now)
        if fields:
            changed.append(Change(*key, fields))
    return Comparison(
        (tuple(sorted(old.releases)), tuple(sorted(new.releases))),
        (old.wheel.size, new.wheel.size),
        len(before.keys() | after.keys()),
        tuple(sorted(after.keys() - before.keys())),
        tuple(sorted(before.keys() - after.keys())),
        tuple(changed),
    )


def _by_key(kernels: Iterable[KernelFacts]) -> dict[tuple[str, str], list[KernelFacts]]:
    """A kernel may be in several files of a wheel: all of them, in a fixed order."""
    found: dict[tuple[str, str], list[KernelFacts]] = {}
    for kernel in sorted(kernels, key=lambda k: (k.member, k.code, k.registers)):
        found.setdefault((stable_name(kernel.name), kernel.arch), []).append(kernel)
    return found
