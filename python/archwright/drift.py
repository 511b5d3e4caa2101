"""How an environment can differ from what was locked, in words and as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from .errors import ArchwrightError, fail

__all__ = ["Drift", "DriftKind", "drift_error", "sort_drifts"]

_SHOWN = 40  # lines of an error; --json has all


class DriftKind(StrEnum):
    """How an environment can differ, in the order in which it matters."""

    MISSING_PACKAGE = "missing package"
    OTHER_VERSION = "other version"
    EXTRA_PACKAGE = "extra package"
    MODIFIED_FILE = "modified file"
    MISSING_FILE = "missing file"
    EXTRA_FILE = "extra file"
    CHANGED_LINK = "changed link"
    CHANGED_MODE = "changed mode"


@dataclass(frozen=True)
class Drift:
    """One difference. `half` is the prefix; `path` is relative to it, and empty for a whole package.

    `package` is empty for a file that belongs to none. `found` and `expected` are versions, sha256 digests or words.
    """

    half: str
    kind: DriftKind
    package: str
    path: str
    found: str
    expected: str

    def as_dict(self) -> dict[str, str]:
        return {key: str(value) for key, value in asdict(self).items()}

    def __str__(self) -> str:
        line = self._line(_short(self.found), _short(self.expected))
        return line if line.isprintable() else ascii(line)[1:-1]  # a file may be called anything

    def _line(self, found: str, expected: str) -> str:
        where = f"{self.half}/{self.path}" + (f" of {self.package}" if self.package else "")
        match self.kind:
            case DriftKind.MISSING_PACKAGE:
                return f"{self.half}: package {self.package} {expected} is missing"
            case DriftKind.OTHER_VERSION:
                return f"{self.half}: package {self.package} is {found} instead of {expected}"
            case DriftKind.EXTRA_PACKAGE:
                return f"{self.half}: package {self.package} {found} is not in the lock"
            case DriftKind.MISSING_FILE:
                return f"{where} is missing"
            case DriftKind.EXTRA_FILE:
                return f"{where} was added: {found}"
            case _:
                return f"{where} was changed: {found} instead of {expected}"


def sort_drifts(drifts: Iterable[Drift]) -> tuple[Drift, ...]:
    """What matters first, and each place once for a kind."""
    order = list(DriftKind)
    once: dict[tuple[int, str, str, str], Drift] = {}
    for drift in drifts:
        once.setdefault((order.index(drift.kind), drift.half, drift.package, drift.path), drift)
    return tuple(once[key] for key in sorted(once))


def drift_error(drifts: Sequence[Drift], target: str) -> ArchwrightError:
    """AW314 with every drift: how many of each kind, then one line for each."""
    counts = Counter(drift.kind for drift in drifts)
    kinds = ", ".join(f"{counts[kind]} {kind}{'s' if counts[kind] > 1 else ''}" for kind in DriftKind if counts[kind])
    more = len(drifts) - _SHOWN
    return fail(
        "AW314",
        found=f"{kinds}; first: {drifts[0]}",
        needed="the environment that the lock describes, unchanged",
        why="what is built or measured in it would say nothing about the lock",
        fix=f"make it anew: `archwright env create {target} --again`",
        detail="\n".join([*map(str, drifts[:_SHOWN]), *([f"... and {more} more"] if more > 0 else [])]),
    )


def _short(text: str) -> str:
    digest = len(text) in (64, 96, 128) and all(letter in "0123456789abcdef" for letter in text)
    return f"hash {text[:12]}..." if digest else text
