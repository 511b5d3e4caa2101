"""What is inside a wheel, and whether it is what its name promises: the first level of evidence rests on this."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .budget import budget_path, read_budget, write_budget
from .components import Component, components
from .devices import devices
from .elf import Damaged
from .errors import ArchwrightError, fail
from .gates import Finding, Subject, Verdict, pass_gates
from .kernels import read_device_code
from .targets import Target, Tier, target_table
from .wheelfile import WheelFile, canonical_name, read_wheel

__all__ = ["DEVICE_COMPILE", "Inspection", "Promise", "inspect_wheel", "read_subject", "rewrite_budget", "unreadable"]

#: What an inspection cannot show, said in every report.
NOT_VERIFIED = ("correct: no device ran these kernels", "performs: no device ran these kernels")
#: Said besides of every wheel for Ascend: no part of Archwright has met CANN's compiler yet.
DEVICE_COMPILE = "not verified here"


@dataclass(frozen=True)
class Inspection:
    """The subject and what each gate found."""

    subject: Subject
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of what the gates found."""
        found = {finding.verdict for finding in self.findings}
        return next((v for v in (Verdict.FAILED, Verdict.UNKNOWN) if v in found), Verdict.PASSED)

    @property
    def not_verified(self) -> tuple[str, ...]:
        """What an inspection of this wheel cannot show."""
        return (*NOT_VERIFIED, f"device_compile: {DEVICE_COMPILE}") if self.subject.is_ascend else NOT_VERIFIED

    def as_dict(self) -> dict[str, Any]:
        subject = self.subject
        wheel, code = subject.wheel, subject.code
        return {
            "wheel": str(wheel.path),
            "sha256": wheel.sha256,
            "bytes": wheel.size,
            "component": subject.component.name,
            "target": subject.target.name,
            "tier": str(subject.target.tier),
            "verdict": str(self.verdict),
            "passed": self.verdict is Verdict.PASSED,
            **({"device_compile": DEVICE_COMPILE} if subject.is_ascend else {}),
            "findings": [finding.as_dict() for finding in self.findings],
            "arches": sorted({cubin.arch for _, _, cubin, _, _ in code.cubins}),
            "compilers": sorted({note for _, _, cubin, _, _ in code.cubins for note in cubin.notes}),
            "cubins": len(code.cubins),
            "compression": sorted({compression or "none" for *_, compression in code.cubins}),
            "kernels": [kernel.as_dict() for kernel in code.kernels],
            "ptx": [vars(ptx) for ptx in code.ptx],
            "ascend": [found.as_dict() for found in code.ascend],
            "inventory": code.inventory,
            "device_code_unknown": sorted(code.unknown),
            "libraries": list(subject.dynamic.needed),
            "not_verified": list(self.not_verified),
        }


@dataclass(frozen=True)
class Promise:
    """What a wheel has to be: made by this recipe, for this target, its kernels for these architectures."""

    component: Component
    target: Target
    arches: tuple[str, ...]
    toolkit: str


def inspect_wheel(path: Path, disassembler: Path | None = None, promise: Promise | None = None) -> Inspection:
    """Read the wheel at `path` and ask every gate; with a `disassembler` (nvdisasm), count instructions too.

    Without a `promise` the wheel's name and version are taken at their word, and the gates find out. Raises AW419
    (hostile), AW420 (cannot be read) and AW103 (no recipe makes such a wheel); what the gates find is in the result.
    """
    subject = read_subject(path, disassembler, promise)
    return Inspection(subject, pass_gates(subject))


def read_subject(path: Path, disassembler: Path | None = None, promise: Promise | None = None) -> Subject:
    wheel = read_wheel(path)
    promise = promise or _promise_of(wheel)
    try:
        code = read_device_code(wheel.members)
        if disassembler:
            from .sass import count_instructions  # starts processes

            code = count_instructions(code, wheel.members, disassembler)
    except Damaged as error:
        raise unreadable(path.name, error) from error
    record = wheel.archwright() or {}
    code = code.with_record(_kernels_of(record))
    component, target = promise.component, promise.target
    budget = read_budget(budget_path(component.folder, target.name)) if component.has_device_code else {}
    return Subject(wheel, code, component, target, promise.arches, promise.toolkit, budget)


def unreadable(name: str, error: Damaged) -> ArchwrightError:
    return fail(
        "AW420",
        found=f"{name}: {error}",
        needed="binaries that are whole",
        why="what cannot be read cannot be vouched for",
        fix="build the wheel again, or download it again and compare its sha256 with the index",
    )


def _kernels_of(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    kernels = record.get("kernels", [])
    entries = kernels if isinstance(kernels, list) else []
    return [
        k for k in entries if isinstance(k, dict) and isinstance(k.get("name"), str) and isinstance(k.get("arch"), str)
    ]


def _component(wheel: WheelFile) -> Component:
    name = canonical_name(wheel.name)
    known = {component.distribution: component for component in components().values()}
    if name not in known:
        raise fail(
            "AW103",
            found=f"{wheel.path.name}: no recipe makes a wheel of {name}",
            needed=f"a wheel of {', '.join(known)}",
            why="the gates compare a wheel with what its recipe promises",
            fix="inspect a wheel that Archwright built",
        )
    return known[name]


def _promise_of(wheel: WheelFile) -> Promise:
    """From the distribution's name, and the version's local part: `cu132.sm100[.sm100a][.exp]`, `cu132.sm100.b200`."""
    component = _component(wheel)
    public, _, local = wheel.version.partition("+")
    toolkit, _, words = local.partition(".")
    name, *rest = words.split(".")
    target = target_table().targets.get(name)
    names = {g.name.replace("_", ""): g.name for g in target.gencodes} if target else {}
    experimental = rest[-1:] == ["exp"]
    asked = rest[:-1] if experimental else rest
    if component.pack:
        names = {
            device.name: device.name for device in devices().values() if target and device.capability in target.devices
        }
    wrong = (
        target is None
        or not re.fullmatch(r"cu\d+|cann\d+|npu\d+|lowered", toolkit)
        or public != component.version
        or experimental != (target.tier is Tier.EXPERIMENTAL)
        or any(word not in names for word in asked)
        or (component.pack is not None and len(asked) != 1)
    )
    if wrong or target is None:
        raise fail(
            "AW420",
            found=f"{wheel.path.name}: version {wheel.version}",
            needed=f"{component.version}+<toolkit>.<target>, with the architectures when not all (of an AOT pack: the "
            "device), and `exp` when experimental",
            why="the version tells which toolkit and target a wheel is for; nothing else is believed",
            fix="never rename wheels: build it with `archwright build`",
        )
    component = component.of(target)
    if component.pack:
        return Promise(component, target, (component.pack.arches[devices()[asked[0]].capability],), toolkit)
    arches = tuple(names[word] for word in asked) or tuple(g.name for g in target.gencodes)
    return Promise(component, target, arches, toolkit)


def rewrite_budget(subject: Subject) -> Path:
    """Write the budget file of the subject's component and target from its kernels. Raises AW418, AW108."""
    path = budget_path(subject.component.folder, subject.target.name)
    for release in sorted(subject.releases):
        kernels = [kernel for kernel in subject.code.kernels if kernel.toolkit == release]
        families = subject.component.pack is not None
        write_budget(path, kernels, release, subject.component.name, subject.target.name, families=families)
    return path
