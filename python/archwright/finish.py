"""From scikit-build-core's wheel to the one that is published: tag, licences, record, SBOM, and the gates.

Runs inside the backend, so `pip wheel` and the command line tool give the same file.
"""

from __future__ import annotations

import base64
import email
import email.policy
import fnmatch
import hashlib
import io
import json
import os
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from packaging.utils import parse_wheel_filename

from . import __version__
from .components import Component
from .errors import fail
from .project import space_errors

if TYPE_CHECKING:
    from .backend import Request
    from .sources import SourceTree

__all__ = ["EXTERNAL", "Abi", "finish_metadata", "finish_wheel", "read_abi"]

#: Libraries that stay outside the wheel: torch's, CUDA's, the driver's, NCCL's and CANN's.
EXTERNAL = frozenset(
    [
        "libtorch*.so",
        "libc10*.so",
        "libcuda.so.1",
        "libcudart.so.13",
        "libnvrtc*.so.*",
        "libcublas*.so.*",
        "libnccl.so.2",
        "libtorch_npu.so",
        "libascend*.so",
        "libhccl.so",
    ]
)

_UNFOLDED = email.policy.compat32.clone(max_line_length=None)


@dataclass(frozen=True)
class Abi:
    """What a wheel's binaries need: the platform tag, and the newest symbol version of each family."""

    platform: str
    needs: dict[str, str]


def finish_wheel(raw: Path, folder: Path, request: Request, source: SourceTree, facts: Mapping[str, Any]) -> Path:
    """Write the finished wheel into `folder`, atomically, and return its path.

    Raises AW401 (files missing), AW402 (symbol versions above the target's floor), AW403 (RPATH leaves the wheel).
    """
    from .sbom import make_sbom  # slow to import, and not needed for the metadata alone

    component = request.component
    with zipfile.ZipFile(raw) as wheel:
        members = {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    info = next(name.partition("/")[0] for name in members if name.partition("/")[0].endswith(".dist-info"))
    _check_expected(component, members)
    _check_rpath(members)
    abi = read_abi(raw)
    _check_floor(abi, request.target.floor)

    licenses = {f"{info}/licenses/{name}": (source.path / name).read_bytes() for name in component.license_files}
    del members[f"{info}/RECORD"]
    members |= licenses
    members[f"{info}/METADATA"] = _with_licenses(members[f"{info}/METADATA"], component.license_files)
    _, version, _, tags = parse_wheel_filename(raw.name)
    tag = next(iter(tags))
    members[f"{info}/WHEEL"] = _with_tag(members[f"{info}/WHEEL"], f"{tag.interpreter}-{tag.abi}-{abi.platform}")
    needed = sorted({value for _, tag, value in _dynamic_tags(members) if tag == "DT_NEEDED"})
    record = _record(request, source, facts, abi, needed)
    members[f"{info}/archwright.json"] = (json.dumps(record, indent=1, sort_keys=True) + "\n").encode()
    members[f"{info}/sboms/{component.distribution}.cdx.json"] = make_sbom(request, source, _epoch()).encode()
    final = folder / f"{raw.name.split('-')[0]}-{version}-{tag.interpreter}-{tag.abi}-{abi.platform}.whl"
    with space_errors(final):
        folder.mkdir(parents=True, exist_ok=True)
        partial = final.with_suffix(".partial")
        try:
            _write_wheel(partial, members, info)
            partial.replace(final)
        finally:
            partial.unlink(missing_ok=True)
    return final


def finish_metadata(path: Path, component: Component) -> None:
    """Make the METADATA file that was prepared before the build equal to the finished wheel's."""
    path.write_bytes(_with_licenses(path.read_bytes(), component.license_files))


def read_abi(wheel: Path) -> Abi:
    """Let auditwheel say what the binaries of `wheel` need. Libraries in `EXTERNAL` are left out by name."""
    from auditwheel.architecture import Architecture  # slow to import, and not needed for the metadata alone
    from auditwheel.libc import Libc
    from auditwheel.wheel_abi import analyze_wheel_abi

    architecture = Architecture(os.uname().machine)
    found = analyze_wheel_abi(Libc.GLIBC, architecture, wheel, EXTERNAL, disable_isa_ext_check=True, allow_graft=False)
    needs: dict[str, str] = {}
    for versions in found.versioned_symbols.values():
        for version in versions:
            family, _, number = version.partition("_")
            if family in ("GLIBC", "GLIBCXX", "CXXABI") and number[:1].isdigit():
                needs[family] = max(needs.get(family, "0"), number, key=_numbers)
    return Abi(found.overall_policy.name, dict(sorted(needs.items())))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _check_expected(component: Component, members: Iterable[str]) -> None:
    names = list(members)
    missing = [p for p in component.wheel_expect if not fnmatch.filter(names, p)]
    if missing:
        raise fail(
            "AW401",
            found=f"a wheel of {component.name} without {', '.join(missing)}",
            needed="every file that the recipe expects",
            why="a step of the build produced nothing without failing",
            fix="delete the build folder of the component and build again; if it persists, the recipe is wrong",
        )


def _dynamic_tags(members: Mapping[str, bytes]) -> Iterator[tuple[str, str, str]]:
    """Each (member, tag, value) of the ELF files' DT_NEEDED, DT_RPATH and DT_RUNPATH."""
    attributes = {"DT_NEEDED": "needed", "DT_RPATH": "rpath", "DT_RUNPATH": "runpath"}
    for name, data in members.items():
        if data[:4] != b"\x7fELF":
            continue
        for section in ELFFile(io.BytesIO(data)).iter_sections():
            if isinstance(section, DynamicSection):
                for tag in section.iter_tags():
                    if tag.entry.d_tag in attributes:
                        yield name, tag.entry.d_tag, getattr(tag, attributes[tag.entry.d_tag])


def _check_rpath(members: Mapping[str, bytes]) -> None:
    for name, tag, value in _dynamic_tags(members):
        if tag != "DT_NEEDED" and any(not part.startswith("$ORIGIN") for part in value.split(":")):
            raise fail(
                "AW403",
                found=f"{name} with {tag} {value}",
                needed="no run path, or one inside the wheel ($ORIGIN)",
                why="it would load libraries from the build machine's folders on another machine",
                fix="take the option that adds it out of the component's CMakeLists.txt",
            )


def _check_floor(abi: Abi, floor: Mapping[str, str]) -> None:
    limits = {"GLIBC": floor["glibc"], "GLIBCXX": floor["GLIBCXX"], "CXXABI": floor["CXXABI"]}
    above = [f"{f}_{v} (floor {limits[f]})" for f, v in abi.needs.items() if _numbers(v) > _numbers(limits[f])]
    if above or abi.platform.startswith("linux_"):
        raise fail(
            "AW402",
            found=", ".join(above) or f"platform {abi.platform}: no manylinux policy fits",
            needed="symbol versions up to " + ", ".join(f"{f}_{v}" for f, v in limits.items()),
            why="the wheel would not load on systems that the target promises",
            fix="build with the provisioned compiler and its sysroot: unset CXX, and take a newer g++ off PATH",
        )


def _with_licenses(metadata: bytes, names: tuple[str, ...]) -> bytes:
    message = email.message_from_bytes(metadata)
    del message["License-File"]
    for name in names:
        message["License-File"] = name
    return message.as_bytes(policy=_UNFOLDED)


def _with_tag(text: bytes, tag: str) -> bytes:
    message = email.message_from_bytes(text)
    del message["Tag"]
    message["Tag"] = tag
    del message["Generator"]
    message["Generator"] = f"archwright {__version__}"
    return message.as_bytes(policy=_UNFOLDED)


def _record(
    request: Request, source: SourceTree, facts: Mapping[str, Any], abi: Abi, needed: list[str]
) -> dict[str, Any]:
    """`archwright.json`: what this wheel is and how it was made. No path, time or host name."""
    environment = request.environment
    return {
        "schema": 1,
        "component": request.component.name,
        **facts,
        "gencodes": [g.name for g in request.gencodes] if request.component.has_device_code else [],
        "requires": request.requires,
        "source": {"distribution": request.component.distribution, "sha256": source.sha256, "patches": source.patches},
        "toolchain": {
            "nvcc": environment.nvcc,
            "gcc": environment.gcc,
            "gcc_origin": environment.compiler_origin,
            "gcc_packages": environment.compiler_packages,
            "torch": environment.torch,
            "nccl": environment.nccl,
            "python": environment.python,
            "locks": environment.locks,
        },
        "abi": {"platform": abi.platform, "needs": abi.needs, "libraries": needed},
        "claims": {
            "compiles": "this wheel was compiled",
            "correct": "not verified here: no device",
            "performs": "not verified here: no device",
        },
    }


def _epoch() -> int:
    return int(os.environ.get("SOURCE_DATE_EPOCH", "315532800"))


def _write_wheel(path: Path, members: Mapping[str, bytes], info: str) -> None:
    """Write the archive in a fixed order with one time stamp; dist-info last, RECORD at its end."""
    record = f"{info}/RECORD"
    order = sorted(members, key=lambda name: (name.startswith(f"{info}/"), name))
    rows = [f"{_csv(name)},sha256={_digest(members[name])},{len(members[name])}" for name in order]
    content = {**{name: members[name] for name in order}, record: "\n".join([*rows, f"{record},,", ""]).encode()}
    stamp = time.gmtime(max(_epoch(), 315532800))[:6]  # zip files start in 1980
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            entry = zipfile.ZipInfo(name, stamp)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if data[:4] == b"\x7fELF" else 0o100644) << 16
            archive.writestr(entry, data)


def _csv(name: str) -> str:
    return f'"{name}"' if "," in name else name


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
