"""The manifest of an AOT pack wheel: which operations were run for it, each case's outcome, and the kernels."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import fail
from .tables import schema_problem
from .wheelfile import WheelFile, check_record, read_wheel

__all__ = [
    "COMPILED",
    "LOWERED",
    "NO_KERNEL",
    "Lowered",
    "Manifest",
    "RanOperation",
    "is_pack",
    "lowered_in",
    "read_manifest",
]

#: Outcomes of a case, as csrc/aot/worker.py writes them.
COMPILED, LOWERED, NO_KERNEL = "compiled", "lowered", "no kernel"

_SCHEMA = Path(__file__).resolve().parent / "schemas" / "manifest.schema.json"


@dataclass(frozen=True)
class RanOperation:
    """One operation: the entry points that it calls, cases by outcome, and what was said where none was compiled.

    `kernels` are (entry, kernel) pairs that its cases used.
    """

    name: str
    calls: tuple[str, ...]
    outcomes: dict[str, int]
    reasons: tuple[str, ...]
    kernels: frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Manifest:
    """What a pack wheel says of itself."""

    wheel: Path
    sha256: str
    component: str
    version: str
    target: str
    device: str
    arch: str
    model: str
    operations: tuple[RanOperation, ...]

    def as_dict(self) -> dict[str, Any]:
        named = {name: str(value) for name, value in vars(self).items() if name != "operations"}
        return named | {"operations": len(self.operations)}


@dataclass(frozen=True)
class Lowered:
    """What a source pack has: how many `operations` were `lowered` whole of how many, and their kernels.

    `reasons` are upstream's words, by operation, where a case has no kernel.
    """

    operations: int
    lowered: int
    kernels: int
    reasons: dict[str, tuple[str, ...]]


def lowered_in(manifest: Manifest) -> Lowered:
    operations = manifest.operations
    return Lowered(
        operations=len(operations),
        lowered=sum(set(operation.outcomes) == {LOWERED} for operation in operations),
        kernels=len({kernel for operation in operations for kernel in operation.kernels}),
        reasons={operation.name: operation.reasons for operation in operations if operation.reasons},
    )


def is_pack(path: Path) -> bool:
    """By its name."""
    return path.name.startswith("archwright_aot_") and path.suffix == ".whl"


def read_manifest(path: Path) -> Manifest:
    """The manifest of the pack wheel at `path`, compared with the wheel's files.

    Raises AW419 for a hostile wheel, AW420 for one that cannot be read, that was changed after it was made, or whose
    manifest is missing, no manifest, or names kernels that the wheel does not have.
    """
    wheel = read_wheel(path)
    if problems := check_record(wheel):
        raise _unreadable(path, f"{problems[0]} ({len(problems)} differences from RECORD)")
    names = [name for name in wheel.members if name.count("/") == 1 and name.endswith("/manifest.json")]
    if len(names) != 1:
        raise _unreadable(path, "no manifest.json in its package" if not names else "several manifests")
    data = _parse(path, wheel.members[names[0]])
    _check_kernels(path, wheel, names[0].partition("/")[0], data)
    facts = {name: data[name] for name in ("component", "version", "target", "device", "arch", "model")}
    operations = tuple(_operation(entry, data["kernels"]) for entry in data["operations"])
    return Manifest(wheel=path, sha256=wheel.sha256, operations=operations, **facts)


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"manifest.json is not JSON ({error})") from error
    if problem := schema_problem(data, _SCHEMA.read_text(encoding="utf-8")):
        raise _unreadable(path, f"manifest.json: {problem[:200]}")
    return data


def _check_kernels(path: Path, wheel: WheelFile, package: str, data: dict[str, Any]) -> None:
    """Every cache entry that a case used has its kernels in the manifest and its files in the wheel."""
    used = {name for operation in data["operations"] for case in operation["cases"] for name in case["kernels"]}
    described = {kernel["entry"] for kernel in data["kernels"]}
    prefix = f"{package}/root/"
    there = {name.removeprefix(prefix).rpartition("/")[0] for name in wheel.members if name.startswith(prefix)}
    if lost := sorted(used - (described & there)):
        raise _unreadable(path, f"manifest.json names {lost[0]}, which the wheel does not have ({len(lost)} such)")


def _operation(data: dict[str, Any], kernels: list[dict[str, Any]]) -> RanOperation:
    used = {name for case in data["cases"] for name in case["kernels"]}
    reasons = Counter(case["reason"] for case in data["cases"] if case["outcome"] == NO_KERNEL and case["reason"])
    return RanOperation(
        name=data["name"],
        calls=tuple(data["calls"]),
        outcomes=dict(Counter(case["outcome"] for case in data["cases"])),
        reasons=tuple(reason for reason, _ in reasons.most_common()),
        kernels=frozenset((kernel["entry"], kernel["name"]) for kernel in kernels if kernel["entry"] in used),
    )


def _unreadable(path: Path, what: str) -> Exception:
    return fail(
        "AW420",
        found=f"{path.name}: {what}",
        needed="an AOT pack wheel as `archwright aot` makes it",
        why="what is covered is read from its manifest, and nothing else",
        fix="make the pack again, or name another wheel",
    )
