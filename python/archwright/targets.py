"""The target table: architectures that are built for, and those that are refused by name."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from packaging.version import Version

from .errors import fail
from .tables import load_table

__all__ = ["Gencode", "Refusal", "Target", "TargetTable", "Tier", "select_gencodes", "target_table"]


class Tier(StrEnum):
    OFFICIAL = "official"
    EXPERIMENTAL = "experimental"


@dataclass(frozen=True)
class Gencode:
    """One real architecture with its suffix: `sm_100a` (exact), `sm_100f` (family) or `sm_100` (plain).

    `runs_on` lists the compute capabilities of the devices that can load its cubins.
    """

    name: str
    nvcc: Version
    runs_on: tuple[str, ...]

    @property
    def flag(self) -> str:
        """The `-gencode` argument: a cubin for exactly this architecture, and no PTX."""
        return f"arch=compute_{self.name.removeprefix('sm_')},code={self.name}"


@dataclass(frozen=True)
class Target:
    """One architecture family that wheels are built for, as `targets.toml` describes it.

    `socs` are patterns of its chips' names and `cann` is the oldest CANN: both for Huawei's only.
    """

    name: str
    title: str
    tier: Tier
    vendor: str
    gencodes: tuple[Gencode, ...]
    devices: dict[str, tuple[str, ...]]
    floor: dict[str, str]
    socs: tuple[str, ...] = ()
    cann: Version | None = None

    @property
    def is_ascend(self) -> bool:
        return self.vendor == "huawei"

    @property
    def flag(self) -> str:
        """What a command for this target has to end with."""
        return " --experimental" if self.tier is Tier.EXPERIMENTAL else ""

    @property
    def described(self) -> str:
        """Its name and those of its devices."""
        return f"{self.name} ({', '.join(name for names in self.devices.values() for name in names)})"


@dataclass(frozen=True)
class Refusal:
    patterns: tuple[str, ...]
    what: str
    reason: str
    instead: str

    def __call__(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.patterns)


@dataclass(frozen=True)
class TargetTable:
    """`processors` maps each to the oldest C library (glibc) for which the locks are solved."""

    python: str
    processors: dict[str, str]
    targets: dict[str, Target]
    refused: tuple[Refusal, ...]
    aliases: dict[str, str]

    def find(self, asked: str) -> Target:
        """The target that `asked` names.

        Raises AW102 for an architecture that is refused by name and AW101 for an unknown one.
        """
        if asked in self.targets:
            return self.targets[asked]
        name = _plain(asked)
        known = ", ".join(self.targets)
        for refusal in self.refused:
            if refusal(name):
                raise fail(
                    "AW102",
                    found=f"'{asked}': {refusal.what}",
                    needed=f"one of the targets {known}",
                    why=refusal.reason,
                    fix=f"use {refusal.instead}",
                )
        chips = self.of_soc(asked)
        meant = name if name in self.targets else self.aliases.get(name) or (chips and chips.name)
        raise fail(
            "AW101",
            found=f"target '{asked}'",
            needed=f"one of {', '.join(target.described for target in self.targets.values())}",
            why=f"'{asked}' belongs to target {meant}" if meant else "wheels are built for one known target at a time",
            fix=f"say `{meant}`" if meant else "run `archwright targets` for the list",
        )

    def of_soc(self, soc: str) -> Target | None:
        """The target that has a chip of this name, as CANN, torch_npu and libraries spell it."""
        name = _plain(soc)
        return next((t for t in self.targets.values() if any(re.fullmatch(soc, name) for soc in t.socs)), None)


def _plain(name: str) -> str:
    """A device's or chip's name in the form that patterns are written for: in one case, without separators."""
    return re.sub(r"[\s_.-]+", "", name.casefold()).removeprefix("nvidia")


@functools.cache
def target_table(path: Path | None = None) -> TargetTable:
    """Load and validate the target table (another one than ours at `path`). Raises AW108 when it is not valid."""
    path = path or Path(__file__).resolve().parent / "targets.toml"
    data = load_table(path, "targets")
    _check_references(path, data)
    gencodes = {
        name: Gencode(name, Version(entry["nvcc"]), tuple(entry["runs_on"])) for name, entry in data["gencodes"].items()
    }
    targets = {
        name: Target(
            name=name,
            title=entry["title"],
            tier=Tier(entry["tier"]),
            vendor=entry["vendor"],
            gencodes=tuple(gencodes[g] for g in entry["gencodes"]),
            devices={capability: tuple(names) for capability, names in entry["devices"].items()},
            floor=dict(entry["floor"]),
            socs=tuple(entry.get("socs", ())),
            cann=Version(entry["cann"]) if "cann" in entry else None,
        )
        for name, entry in data["targets"].items()
    }
    refused = tuple(Refusal(tuple(r["patterns"]), r["what"], r["reason"], r["instead"]) for r in data["refused"])
    return TargetTable(data["python"], dict(data["processors"]), targets, refused, dict(data["aliases"]))


def _check_references(path: Path, data: dict[str, Any]) -> None:
    """A schema cannot say that what one table names must be in another."""
    unknown = {name for entry in data["targets"].values() for name in entry["gencodes"]} - data["gencodes"].keys()
    unknown |= set(data["aliases"].values()) - data["targets"].keys()
    if unknown:
        raise fail(
            "AW108",
            found=f"{path}: no entry for {', '.join(sorted(unknown))}",
            needed="an entry for every gencode and every target that is named",
            why="targets and components are data: a wrong table would build the wrong thing",
            fix="correct the name, or add the entry",
        )


def select_gencodes(target: Target, asked: tuple[str, ...]) -> tuple[Gencode, ...]:
    """The target's gencodes, or those of them that were asked for, in the table's order.

    Raises AW107 for one that the target does not have: `sm_100`, `sm_100a` and `sm_100f` differ.
    """
    known = {g.name: g for g in target.gencodes}
    for name in asked:
        if name not in known:
            raise fail(
                "AW107",
                found=f"gencode '{name}' for target {target.name}",
                needed=f"one of {', '.join(known) or 'none (this target has no gencodes)'}",
                why="the suffix matters: sm_100 (plain), sm_100a (exact) and sm_100f (family) are three architectures",
                fix=f"--gencode {next(iter(known), '...')}",
            )
    return tuple(g for g in target.gencodes if not asked or g.name in asked)
