"""Checks of a machine that builds for Ascend: the active CANN and its parts, others beside it, and torch_npu."""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution
from pathlib import Path

from packaging.version import Version

from .cann import (
    VARIABLES,
    Cann,
    cann_at,
    check_cann_floor,
    find_cann,
    owner_of,
    parse_release,
    system_wide_record,
    usual_tops,
)
from .environment import Environment
from .errors import ArchwrightError
from .findings import Finding, Level, from_error
from .machine import glibc_version
from .repairs import in_shell, with_tool
from .targets import Target

__all__ = ["check_cann", "check_torch_npu"]

_RUNTIME = "libascendc_runtime.a"

_G3 = "importing torch_npu ends with `libhccl.so: cannot open shared object file`"


def check_cann(target: Target, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """The CANN that builds of `target` take, and what of it is missing. Starts none of its programs."""
    try:
        found = find_cann(environment)
    except ArchwrightError as error:
        stale = next((name for name in VARIABLES if environment.get(name)), None)
        yield from_error("CANN", error, in_shell(f"unset {stale}") if stale else ())
        return
    if found is None:
        yield Finding(
            "CANN",
            Level.FAIL,
            f"none: neither {' nor '.join(VARIABLES)} is set, and none lies in {' or '.join(map(str, usual_tops()))}",
            f"CANN {target.cann} or newer, active",
            "only CANN has the compiler, headers and libraries of Ascend kernels",
            f"install the CANN toolkit {target.cann} or newer for {platform.machine()}, Huawei's own package; then "
            "`source <its root>/set_env.sh`",
            "AW334",
        )
    else:
        yield Finding("CANN", Level.OK, f"{found.root} (named by {found.origin})", code="AW334")
        yield _version(found, target)
        yield from _processor(found)
        yield _activation(found, environment)
        yield from _moved(found)
        yield _others(found, environment)
        yield from _system_wide(found)
    yield from _parts(found)


def _version(found: Cann, target: Target) -> Finding:
    floor, release = target.cann or Version("0"), parse_release(found.version)
    needed = f"CANN {floor} or newer"
    if release is None:
        return Finding(
            "CANN version",
            Level.NOTE,
            f"not known: {found.record or found.root} does not say it",
            needed,
            "an older one does not know the chip, or lacks what the kernels use",
            "name the folder that holds <arch>-linux/ascend_toolkit_install.info",
            "AW336",
        )
    try:
        check_cann_floor(found, floor)
    except ArchwrightError as error:
        return from_error("CANN version", error)
    if release >= floor:
        return Finding("CANN version", Level.OK, found.version, needed, code="AW336")
    return Finding(
        "CANN version",
        Level.NOTE,
        f"{found.version}: a pre-release of {release.base_version}",
        needed,
        "it is not the release: kernels may not compile, and what it makes says nothing about the release",
        f"install the release {release.base_version} when there is one; evidence names the exact version",
        "AW336",
    )


def _processor(found: Cann) -> Iterator[Finding]:
    machine = platform.machine()
    if found.processor == machine:
        yield Finding("CANN processor", Level.OK, machine, code="AW339")
    elif found.processor:  # without one the headers are missing too
        yield Finding(
            "CANN processor",
            Level.FAIL,
            f"CANN at {found.root} is for {found.processor}",
            f"CANN for {machine}, this machine's processor",
            "wheels are built on the processor that they are for, and its programs do not run here",
            f"install the CANN toolkit for {machine}, or build on a machine with {found.processor}",
            "AW339",
        )


def _activation(found: Cann, environment: Mapping[str, str]) -> Finding:
    check, needed = "CANN environment", "what its set_env.sh exports"
    if found.origin not in VARIABLES:
        missing, why = ["neither variable names it"], f"builds take it, as the only one here, but {_G3}"
    else:
        why = f"builds name its folders themselves, but {_G3}"
        libraries = any(_owner(path, found) == found.identity for path in _folders(environment))
        missing = [] if libraries else ["LD_LIBRARY_PATH has nothing of it"]
        if not _bisheng(environment):
            missing.append("there is no bisheng on PATH")
    if not missing:
        return Finding(check, Level.OK, "sourced", code="AW335")
    text = f"{found.root} is not sourced: {' and '.join(missing)}"
    return Finding(check, Level.NOTE, text, needed, why, f"`{found.activation}`", "AW335", in_shell(found.activation))


def _moved(found: Cann) -> Iterator[Finding]:
    """set_env.sh names its own folder. The one beside `latest` (layout 8.x) may name another version beside it."""
    script = found.set_env
    if script is None:
        return
    match = re.search(
        rf"(?m)^\s*(?:export\s+)?(?:{'|'.join(VARIABLES)})=[\"']?(/[^\s\"':;$]+)", script.read_text(errors="replace")
    )
    named = Path(match[1]) if match else None
    if named is None or cann_at(named, "").identity == found.identity:
        return
    if script.parent != found.root and named.is_dir() and named.resolve().is_relative_to(script.parent.resolve()):
        return
    yield Finding(
        "set_env.sh",
        Level.NOTE,
        f"{script} names {named}{'' if named.is_dir() else ', which is not there'}",
        str(found.root),
        "the installer writes the folder into it: after a move or a copy, sourcing it activates another one, or none",
        f"install it again in its place; to build, `{found.naming}` is enough",
        "AW341",
        in_shell(found.naming),
    )


def _others(found: Cann, environment: Mapping[str, str]) -> Finding:
    """What leads to another CANN than the one that is taken: its parts would be mixed with it."""
    mixed = [
        f"{name} names {environment[name]}"
        for name in (*VARIABLES, "ASCEND_OPP_PATH", "BISHENG_HOME")
        if environment.get(name) and _owner(Path(environment[name]), found) != found.identity
    ]
    bisheng = _bisheng(environment)
    if bisheng and _owner(bisheng, found) != found.identity:
        mixed.append(f"PATH has {bisheng}")
    owners = {_owner(path, found): path for path in reversed(_folders(environment))}
    others = {owner: path for owner, path in owners.items() if owner not in (None, found.identity)}
    mixed += [f"LD_LIBRARY_PATH has {path}" for path in others.values()]
    if not mixed:
        return Finding("one CANN", Level.OK, "nothing leads to another one", code="AW337")
    return Finding(
        "one CANN",
        Level.FAIL,
        "; ".join(mixed),
        f"nothing that leads to another one than {found.root}",
        "one's compiler with the other's headers or libraries fails late, or makes kernels that do not load",
        f"`{found.activation}` in a new shell, and source one only",
        "AW337",
    )


def _system_wide(found: Cann) -> Iterator[Finding]:
    """Case G2: the record of the last installer is told about, and never followed."""
    named = system_wide_record()
    if named is None:
        return
    folder, version, record = named
    same = any(path.is_relative_to(folder.resolve()) for path in (found.identity, found.root.resolve()))
    if same and version in ("", found.version):
        return
    yield Finding(
        "system-wide CANN",
        Level.NOTE,
        f"{record} names {folder}{f' ({version})' if version else ''}",
        f"{found.root} ({found.version or 'no record'}), as the environment says",
        "it is what was installed last by root; builds do not follow it, but other projects' scripts do",
        "nothing to do here; with such a script, name the folder to it",
        "AW337",
    )


def _parts(found: Cann | None) -> Iterator[Finding]:
    """What a build needs of CANN, one row each: without a CANN they are what is missing."""
    where = f" in {found.root}" if found else ""
    for check, path, needed, why in (
        ("bisheng", found and found.bisheng, "bisheng", "it compiles the kernels"),
        ("ld.lld", found and found.ld_lld, "CANN's own ld.lld", "it links TileLang's kernels (`-m aicorelinux`)"),
        ("CANN headers", found and _headers(found), "include and asc/include", "kernels and host code include them"),
        ("CANN runtime", found and _file(found.libraries / _RUNTIME), _RUNTIME, "FlashMLA's module is linked with it"),
    ):
        if path:
            yield Finding(check, Level.OK, str(path), code="AW338")
            continue
        fix = "install the CANN toolkit again, or name the root of a whole one" if found else "install CANN, see above"
        yield Finding(check, Level.FAIL, f"none{where}", needed, why, fix, "AW338")
    if found is None:
        return
    asc = found.asc_cmake
    if asc:
        yield Finding("CMake package ASC", Level.OK, str(asc), code="AW338")
    else:
        yield Finding(
            "CMake package ASC",
            Level.NOTE,
            f"none{where}",
            "the CMake package with the language ASC",
            "without it, bisheng is called as a custom compiler",
            "nothing to do",
            "AW338",
        )


def check_torch_npu(environment: Environment, target: Target) -> Iterator[Finding]:
    """torch_npu as its metadata describes it: it is not imported, for that needs CANN."""
    site = environment.runtime_site
    package = next(iter(Distribution.discover(name="torch-npu", path=[str(site)])), None)
    again = with_tool("env", "create", target.name, "--again")
    folder = site / "torch_npu"
    pairs = package is not None and Version(package.version).release[:2] == Version(environment.torch).release[:2]
    if package is None or not pairs or not folder.is_dir():
        yield Finding(
            "torch_npu",
            Level.FAIL,
            f"torch_npu {package.version if package else 'is missing'}, with torch {environment.torch}, in {site}",
            f"torch_npu for torch {environment.torch}, in one folder with it",
            "torch_npu is compiled against one minor release of torch, and wheels against both",
            f"recreate the environment from its lock: `archwright env create {target.name} --again`",
            "AW340",
            again,
        )
        return
    yield Finding(
        "torch_npu", Level.OK, f"{package.version}, with torch {environment.torch}, at {folder}", code="AW340"
    )
    floors = [(int(a), int(b)) for a, b in re.findall(r"manylinux_(\d+)_(\d+)_", package.read_text("WHEEL") or "")]
    machine = glibc_version()
    if floors and machine and tuple(map(int, machine.split("."))) < min(floors):
        floor = ".".join(map(str, min(floors)))
        yield Finding(
            "C library for torch_npu",
            Level.FAIL,
            f"glibc {machine}",
            f"glibc {floor} or newer, as torch_npu's wheel says",
            "it would not load here",
            "build on a newer system; a container of one does",
            "AW324",
        )


def _owner(path: Path, found: Cann) -> Path | None:
    """The root of the CANN in which `path` lies, also when `found` has no record to tell it by."""
    return found.identity if path.resolve().is_relative_to(found.identity) else owner_of(path)


def _folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    return tuple(Path(entry) for entry in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry)


def _bisheng(environment: Mapping[str, str]) -> Path | None:
    found = shutil.which("bisheng", path=environment.get("PATH", ""))
    return Path(found) if found else None


def _headers(found: Cann) -> Path | None:
    needed = (found.host_folder / "include", found.host_folder / "asc" / "include")
    return needed[0] if all(folder.is_dir() for folder in needed) else None


def _file(path: Path) -> Path | None:
    return path if path.is_file() else None
