"""The gates of a wheel: one question each, on by default, each with a code and a page in docs/errors."""

from __future__ import annotations

import fnmatch
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from .abi import newest, numbers, smallest_policy
from .ascend import cann_word
from .budget import Budget, check_budget
from .cce import REL_SECTION, UNKNOWN
from .components import Component
from .elf import Dynamic
from .errors import CATALOGUE, ArchwrightError, fail
from .kernels import DeviceCode
from .targets import Target, target_table
from .traces import find_traces
from .wheelfile import WheelFile, check_record

__all__ = [
    "GATES",
    "Finding",
    "Gate",
    "Subject",
    "Verdict",
    "gate_error",
    "lowered_sources",
    "missing_files",
    "pass_gates",
    "refusal",
]

#: Names of files in a wheel for Ascend that have to be ELF files; those that match the second one, for the device.
_BINARY = re.compile(r"\.(so(\.\d+)*|o|aibin|npubin)$")
_DEVICE_BINARY = re.compile(r"\.(o|aibin|npubin)$")
_CUDA_LIBRARIES = ("libcuda*.so*", "libnvrtc*.so*", "libcublas*.so*", "libnccl.so*")


class Verdict(StrEnum):
    """What is known: `unknown` is what no public fact lets anybody judge, and never counts as passed."""

    PASSED = "passed"
    UNKNOWN = "unknown"
    FAILED = "failed"


@dataclass(frozen=True)
class Subject:
    """A wheel, what is inside, and what the recipe and the target table promise about it.

    `arches` are the architectures that its kernels must cover, `toolkit` is the `cu132` of its version.
    """

    wheel: WheelFile
    code: DeviceCode
    component: Component
    target: Target
    arches: tuple[str, ...]
    toolkit: str
    budget: Budget

    @property
    def dynamic(self) -> Dynamic:
        """What all binaries need, together."""
        each = [binary.dynamic for binary in self.code.binaries]
        return Dynamic(
            tuple(sorted({name for d in each for name in d.needed})),
            tuple(path for d in each for path in d.run_paths),
            tuple(sorted({version for d in each for version in d.versions})),
        )

    @property
    def sources(self) -> list[str]:
        """Empty but for a source pack."""
        return lowered_sources(self.wheel.members)

    @property
    def is_ascend(self) -> bool:
        """Whether it is for Ascend, by its name or by its record (AW422 fails when those differ)."""
        recorded = target_table().targets.get(str((self.wheel.archwright() or {}).get("target")))
        return self.target.is_ascend or (recorded is not None and recorded.is_ascend)

    @property
    def releases(self) -> set[str]:
        """Releases of the ptxas that made the cubins."""
        return {cubin.toolkit for _, _, cubin, _, _ in self.code.cubins}


@dataclass(frozen=True)
class Gate:
    """`check` returns what is wrong, one text a problem, and `unknown` what it cannot judge; the rest tells what to do
    about it.
    """

    code: str
    needed: str
    why: str
    fix: str
    check: Callable[[Subject], list[str]]
    unknown: Callable[[Subject], list[str]] = lambda subject: []


@dataclass(frozen=True)
class Finding:
    code: str
    gate: str
    problems: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        return Verdict.FAILED if self.problems else Verdict.UNKNOWN if self.unknown else Verdict.PASSED

    @property
    def passed(self) -> bool:
        return self.verdict is Verdict.PASSED

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": str(self.verdict), "passed": self.passed}


def lowered_sources(names: Iterable[str]) -> list[str]:
    """The lowered sources of a source pack: kernels that a machine with CANN has to compile."""
    return [name for name in names if name.endswith("/kernel.asc")]


def missing_files(component: Component, names: Iterable[str]) -> list[str]:
    """The patterns of the recipe's expected files that nothing in `names` fits (case G5)."""
    names = list(names)
    return [pattern for pattern in component.wheel_expect if not fnmatch.filter(names, pattern)]


def _expected_files(subject: Subject) -> list[str]:
    return [f"no file {pattern}" for pattern in missing_files(subject.component, subject.wheel.members)]


def _floor(subject: Subject) -> list[str]:
    floor = subject.target.floor
    limits = {"GLIBC": floor["glibc"], "GLIBCXX": floor["GLIBCXX"], "CXXABI": floor["CXXABI"]}
    needs = newest(subject.dynamic.versions)
    return [f"{f}_{v} (floor {limits[f]})" for f, v in needs.items() if numbers(v) > numbers(limits[f])]


def _run_paths(subject: Subject) -> list[str]:
    return [
        f"{binary.member}: {path}"
        for binary in subject.code.binaries
        for path in binary.dynamic.run_paths
        if any(not part.startswith("$ORIGIN") for part in path.split(":"))
    ]


def _arches(subject: Subject) -> list[str]:
    """Of cubins; what there is for Ascend is asked by its own gate."""
    wanted = set(subject.arches) if subject.component.has_device_code and not subject.is_ascend else set()
    if wanted and not subject.code.kernels:
        return [f"no kernel at all; {', '.join(sorted(wanted))} expected"]
    problems = {
        f"{member}: a cubin for {cubin.arch}": None
        for member, _, cubin, _, _ in subject.code.cubins
        if cubin.arch not in wanted
    }
    covers: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for kernel in subject.code.kernels:
        covers[kernel.member, kernel.name].add(kernel.arch)
    for (member, name), arches in covers.items():
        if missing := wanted - arches:
            problems[f"{member}: {name[:120]} is not there for {', '.join(sorted(missing))}"] = None
    return list(problems)


def _ptx(subject: Subject) -> list[str]:
    return [
        f"{ptx.member}: PTX for {ptx.arch}, {ptx.bytes} bytes"
        for ptx in subject.code.ptx
        if ptx.arch not in subject.component.wheel_ptx
    ]


def _relocatable(subject: Subject) -> list[str]:
    return list(
        dict.fromkeys(
            f"{member}: relocatable code for {cubin.arch}" + (f" in {section}" if section else "")
            for member, section, cubin, _, _ in subject.code.cubins
            if cubin.relocatable or section == "__nv_relfatbin"
        )
    )


def _platform(subject: Subject) -> list[str]:
    wheel, dynamic = subject.wheel, subject.dynamic
    problems = []
    named = sorted(
        f"{python}-{abi}-{platform}"
        for python in wheel.python.split(".")
        for abi in wheel.abi.split(".")
        for platform in wheel.platform.split(".")
    )
    if sorted(wheel.wheel_tags()) != named:
        problems.append(f"the file name says {' '.join(named)}, WHEEL says {' '.join(wheel.wheel_tags()) or 'nothing'}")
    for processor in sorted({binary.processor for binary in subject.code.binaries}):
        needed = smallest_policy(dynamic.needed, dynamic.versions, processor)
        if needed != wheel.platform:
            problems.append(f"the file name says {wheel.platform}, the binaries need {needed}")
    return problems


def _size(subject: Subject) -> list[str]:
    limit = subject.component.max_mib * 2**20
    if subject.wheel.size <= limit:
        return []
    return [f"{subject.wheel.size / 2**20:.2f} MiB; the recipe allows {subject.component.max_mib:g} MiB"]


def _kernel_budget(subject: Subject) -> list[str]:
    problems = []
    for release in sorted(subject.releases):
        kernels = [kernel for kernel in subject.code.kernels if kernel.toolkit == release]
        problems += check_budget(subject.budget, kernels, release, families=subject.component.pack is not None)
    return problems


def _ascend(subject: Subject) -> list[str]:
    code, target = subject.code, subject.target
    if not subject.is_ascend:
        return list(dict.fromkeys(f"{c.member}: Ascend device code in a wheel for {target.name}" for c in code.ascend))
    problems = [
        f"{name}: begins with {data[:24]!r}; it is not an ELF file"
        for name, data in subject.wheel.members.items()
        if _BINARY.search(name) and data[:4] != b"\x7fELF"
    ]
    for binary in code.binaries:
        if _DEVICE_BINARY.search(binary.member) or binary.processor.startswith("machine-"):
            problems.append(f"{binary.member}: an ELF file for {binary.processor}, not for Ascend")
        problems += [
            f"{binary.member}: needs {library} of CUDA"
            for library in binary.dynamic.needed
            if any(fnmatch.fnmatch(library, pattern) for pattern in _CUDA_LIBRARIES)
        ]
    for found in code.ascend:
        where = f"{found.member} {found.section}".rstrip()
        if found.relocatable and found.section != REL_SECTION:
            problems.append(f"{where}: not linked (ld.lld -m aicorelinux)")
        if not found.kernels:
            problems.append(f"{where}: no entry symbol")
        if found.arch not in (UNKNOWN, *target.devices):
            problems.append(f"{where}: device code for {found.soc}; {', '.join(target.devices)} expected")
    if subject.component.has_device_code and not code.ascend and not subject.sources:
        problems.append("no Ascend device code at all")
    if subject.sources and (code.ascend or code.binaries):
        problems.append("binaries in a source pack, which was never compiled")
    return problems


def _ascend_unknown(subject: Subject) -> list[str]:
    if not subject.is_ascend:
        return []
    arches = {
        f"{code.member} {code.section}".rstrip(): f"for which chip its code is (e_flags {code.flags:#x})"
        for code in subject.code.ascend
        if code.arch == UNKNOWN
    }
    carried = {
        member: f"device code: unknown (needs {', '.join(names)}, and carries none in a known way)"
        for member, names in subject.code.unknown.items()
    }
    sources = {f"{len(subject.sources)} lowered sources": "whether they compile"} if subject.sources else {}
    return [f"{where}: {what}" for where, what in (arches | carried | sources).items()]


def _toolkit(subject: Subject) -> list[str]:
    problems = [
        f"cubins by ptxas {release}, the version says {subject.toolkit}"
        for release in sorted(subject.releases)
        if "cu" + "".join(release.split(".")[:2]) != subject.toolkit
    ]
    told = subject.wheel.fields("METADATA", "Version")
    if told != (subject.wheel.version,):
        problems.append(f"METADATA says version {', '.join(told) or 'nothing'}, the file name {subject.wheel.version}")
    record = subject.wheel.archwright()
    if record is None:
        return [*problems, "no archwright.json: not made by Archwright"]
    says = {"component": record.get("component"), "target": record.get("target")}
    mine = {"component": subject.component.name, "target": subject.target.name}
    problems += [
        f"archwright.json says {key} {says[key]!r}, the name says {mine[key]!r}"
        for key in mine
        if says[key] != mine[key]
    ]
    toolchain = record.get("toolchain")
    nvcc = toolchain.get("nvcc") if isinstance(toolchain, dict) else None
    cann = toolchain.get("cann") if isinstance(toolchain, dict) else None
    version = str(cann.get("version")) if isinstance(cann, dict) else ""
    if subject.toolkit.startswith("cann") and cann_word(version) != subject.toolkit:
        problems.append(f"archwright.json says CANN {version or 'nothing'}, the version says {subject.toolkit}")
    problems += [
        f"cubins by ptxas {r}, archwright.json says nvcc {nvcc}" for r in sorted(subject.releases) if r != nvcc
    ]
    return problems


GATES = (
    Gate(
        "AW416",
        "a RECORD that lists every file with its size and hash",
        "a file that differs from RECORD was changed after the build, or lost",
        "build the wheel again, or download it again and compare its sha256 with the index",
        lambda subject: check_record(subject.wheel),
    ),
    Gate(
        "AW401",
        "every file that the recipe expects",
        "a step of the build produced nothing without failing",
        "delete the build folder of the component and build again; if it persists, the recipe is wrong",
        _expected_files,
    ),
    Gate(
        "AW411",
        "every kernel for each of the target's architectures, and nothing for others",
        "a missing one is 'no kernel image' on some devices and for some operations only",
        "build again with the target's own gencodes; a stray flag in CMakeLists.txt adds others",
        _arches,
    ),
    Gate(
        "AW412",
        "no PTX, or PTX that the recipe declares (`ptx` under [wheel])",
        "PTX is compiled by the driver on the production node, for devices that nobody tested",
        "take `code=compute_...` out of the flags, or declare it",
        _ptx,
    ),
    Gate(
        "AW413",
        "no relocatable device code",
        "what a device link left in is never used, and doubles the size",
        "leave CUDA_SEPARABLE_COMPILATION (-rdc=true) off",
        _relocatable,
    ),
    Gate(
        "AW422",
        "cubins of the toolkit that the name says, and a matching archwright.json",
        "a precompiled wheel of another CUDA release loads on some machines only",
        "build it with the locked toolchain; never rename wheels",
        _toolkit,
    ),
    Gate(
        "AW414",
        "one platform tag: in the file name, in WHEEL, and the one that the binaries need",
        "installers believe the name: the wheel would be installed where it cannot load, or refused where it could",
        "never rename wheels; build it again",
        _platform,
    ),
    Gate(
        "AW424",
        "linked Ascend device code with entry symbols, for the target's chips; none in wheels for other targets",
        "CANN's loader refuses anything else, at the first call on a device",
        "delete the component's build folder and build again where CANN's bisheng is",
        _ascend,
        _ascend_unknown,
    ),
    Gate(
        "AW402",
        "symbol versions up to the target's floor",
        "the wheel would not load on systems that the target promises",
        "build with the provisioned compiler and its sysroot: unset CXX, and take a newer g++ off PATH",
        _floor,
    ),
    Gate(
        "AW403",
        "no run path, or one inside the wheel ($ORIGIN)",
        "it would load libraries from the build machine's folders on another machine",
        "take the option that adds it out of the component's CMakeLists.txt",
        _run_paths,
    ),
    Gate(
        "AW415",
        "no path, host name or user name of a machine in any byte",
        "it tells strangers about the machine, and two machines would build different wheels",
        "map the path (-ffile-prefix-map), or declare a harmless text in the recipe (`paths` under [wheel])",
        lambda subject: find_traces(subject.wheel.members, subject.component.wheel_paths),
    ),
    Gate(
        "AW417",
        "a wheel within the recipe's size budget",
        "an index or a host refuses large files, and every node downloads them",
        "find what grew (`archwright inspect --compare OLD NEW`); raise `max_mib` in the recipe if it is right",
        _size,
    ),
    Gate(
        "AW418",
        "registers, stack and spills within the kernel budget of this nvcc",
        "a spilling kernel is slower, and nothing else tells",
        "if the change is right: `archwright inspect --write-budget WHEEL`, look at the difference and commit it",
        _kernel_budget,
    ),
)


def pass_gates(subject: Subject) -> tuple[Finding, ...]:
    """Ask every gate, in the table's order."""
    return tuple(
        Finding(gate.code, CATALOGUE[gate.code].title, tuple(gate.check(subject)), tuple(gate.unknown(subject)))
        for gate in GATES
    )


def refusal(code: str, problem: str, name: str) -> ArchwrightError:
    """The error of one gate, for who notices before there is a wheel to inspect."""
    error = gate_error((Finding(code, CATALOGUE[code].title, (problem,)),), name)
    assert error is not None
    return error


def gate_error(findings: tuple[Finding, ...], name: str) -> ArchwrightError | None:
    """The error of the first gate that failed, with every problem in its detail; None when none did."""
    failed = [finding for finding in findings if finding.verdict is Verdict.FAILED]
    if not failed:
        return None
    gate = next(gate for gate in GATES if gate.code == failed[0].code)
    lines = [f"{finding.code} {problem}" for finding in failed for problem in finding.problems]
    more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
    return fail(
        gate.code,
        found=f"{name}: {failed[0].problems[0]}{more}",
        needed=gate.needed,
        why=gate.why,
        fix=gate.fix,
        detail="\n".join(lines) if len(lines) > 1 else "",
    )
