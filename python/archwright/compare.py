"""What changed between two wheels, kernel by kernel: what a new toolchain or a new release did."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .cce import UNKNOWN
from .demangle import stable_name
from .gates import Subject

__all__ = ["Change", "Comparison", "compare"]

#: Of kernels for CUDA devices, then of those for Ascend and of their lowered sources.
_FIELDS = (
    *("registers", "stack", "local", "shared", "max_threads", "code", "spill_stores", "spill_loads", "instructions"),
    *("soc", "core", "arguments", "flags", "source"),
)

#: Name and architecture of a kernel.
type _Key = tuple[str, str]


@dataclass(frozen=True)
class Change:
    """One kernel whose figures differ: field -> (old, new)."""

    name: str
    arch: str
    fields: dict[str, tuple[Any, Any]]


@dataclass(frozen=True)
class Comparison:
    """`toolkits` are the releases of ptxas, `compilers` what Ascend device code names; `bytes` the sizes of the wheels.

    The figures of a kernel for Ascend are those that public facts tell: its code and arguments in bytes, core, SoC and
    e_flags. In a source pack a kernel is an entry symbol, and its figure the beginning of its source's sha256.
    """

    toolkits: tuple[tuple[str, ...], tuple[str, ...]]
    compilers: tuple[tuple[str, ...], tuple[str, ...]]
    bytes: tuple[int, int]
    kernels: int
    added: tuple[_Key, ...]
    removed: tuple[_Key, ...]
    changed: tuple[Change, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(old: Subject, new: Subject) -> Comparison:
    """Compare the kernels of two wheels by name and architecture."""
    before, after = _by_key(old), _by_key(new)
    changed = []
    for key in sorted(before.keys() & after.keys()):
        fields = {}
        for field in _FIELDS:
            was, now = ([figures.get(field) for figures in side[key]] for side in (before, after))
            # None: nobody disassembled that wheel, or nobody kept ptxas's report of it; or it is no figure of this kind
            if was != now and None not in (*was, *now):
                fields[field] = (was[0], now[0]) if len(was) == len(now) == 1 else (was, now)
        if fields:
            changed.append(Change(*key, fields))
    return Comparison(
        (tuple(sorted(old.releases)), tuple(sorted(new.releases))),
        (_compilers(old), _compilers(new)),
        (old.wheel.size, new.wheel.size),
        len(before.keys() | after.keys()),
        tuple(sorted(after.keys() - before.keys())),
        tuple(sorted(before.keys() - after.keys())),
        tuple(changed),
    )


def _compilers(subject: Subject) -> tuple[str, ...]:
    return tuple(sorted({name for code in subject.code.ascend for name in code.compilers}))


def _by_key(subject: Subject) -> dict[_Key, list[Mapping[str, Any]]]:
    """A kernel may be in several files of a wheel: the figures of all of them, in a fixed order."""
    found: dict[_Key, list[Mapping[str, Any]]] = {}
    for kernel in sorted(subject.code.kernels, key=lambda k: (k.member, k.code, k.registers)):
        found.setdefault((stable_name(kernel.name), kernel.arch), []).append(vars(kernel))
    for code in sorted(subject.code.ascend, key=lambda c: (c.member, c.section, c.soc)):
        for entry in code.kernels:
            figures = asdict(entry) | {"soc": code.soc, "flags": f"{code.flags:#x}"}
            found.setdefault((entry.name, code.arch), []).append(figures)
    for key, digest in sorted(_sources(subject.wheel.members)):
        found.setdefault(key, []).append({"source": digest})
    return found


def _sources(members: Mapping[str, bytes]) -> Iterator[tuple[_Key, str]]:
    """The entry symbols of a source pack's lowered sources; an entry without a readable build.json is its own name."""
    for member, data in members.items():
        folder, _, name = member.rpartition("/")
        if name != "kernel.asc":
            continue
        try:
            build = json.loads(members[f"{folder}/build.json"])
            keys = [(str(symbol), str(build["compiler"]["target_arch"])) for symbol in build["symbols"]]
        except (KeyError, TypeError, ValueError, RecursionError):
            keys = [(folder, UNKNOWN)]
        digest = hashlib.sha256(data).hexdigest()[:16]
        yield from ((key, digest) for key in keys)
