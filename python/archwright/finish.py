"""From scikit-build-core's wheel to the one that is published: tag, licences, record, SBOM, and the gates.

Runs inside the backend, so `pip wheel` and the command line tool give the same file.
"""

from __future__ import annotations

import base64
import email
import email.policy
import hashlib
import json
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.utils import parse_wheel_filename

from . import __version__
from .abi import Abi, read_abi
from .ascend import compiler_facts
from .components import Component
from .elf import Damaged
from .gates import gate_error, lowered_sources, missing_files, refusal
from .inspection import DEVICE_COMPILE, Promise, inspect_wheel, unreadable
from .kernels import DeviceCode, has_host_code, read_device_code
from .project import write_errors
from .ptxas import Key, Report
from .sass import count_instructions

if TYPE_CHECKING:
    from .backend import Request
    from .sources import SourceTree

__all__ = ["BuildReport", "finish_metadata", "finish_wheel"]

#: The claim of a source pack.
_LOWERED = "not shown: this wheel has lowered sources, which no compiler has seen"

_UNFOLDED = email.policy.compat32.clone(max_line_length=None)


@dataclass(frozen=True)
class BuildReport:
    """What a build knows beyond the wheel: ptxas's words, a disassembler with its memory of counts, and where a wheel
    goes that does not pass the gates, to be looked at.
    """

    rejected: Path
    ptxas: Mapping[Key, Report] = field(default_factory=dict)
    disassembler: Path | None = None
    counts: Path | None = None


def finish_wheel(
    raw: Path,
    folder: Path,
    request: Request,
    source: SourceTree,
    facts: Mapping[str, Any],
    report: BuildReport,
) -> Path:
    """Write the finished wheel into `folder`, atomically, and return its path.

    Raises the error of the first gate that it does not pass (docs/inspection.md), AW402 when no platform tag fits, and
    AW420 when its device code cannot be read. `folder` is left as it was then; a wheel that exists is in
    `report.rejected`.
    """
    component = request.component
    with zipfile.ZipFile(raw) as wheel:
        members = {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    info = next(name.partition("/")[0] for name in members if name.partition("/")[0].endswith(".dist-info"))
    if missing := missing_files(component, members):
        raise refusal("AW401", f"no file {', '.join(missing)}", raw.name)
    abi = read_abi(raw) if has_host_code(members) else Abi("any", {})
    if abi.platform.startswith("linux_"):
        raise refusal("AW402", f"no manylinux policy fits; needs {abi.needs} and {abi.platform}", raw.name)
    try:
        code = read_device_code(members).with_reports(report.ptxas)
        if report.disassembler:
            code = count_instructions(code, members, report.disassembler, report.counts)
    except Damaged as error:
        raise unreadable(raw.name, error) from error
    del members[f"{info}/RECORD"]
    members |= {f"{info}/licenses/{name}": (source.path / name).read_bytes() for name in component.license_files}
    members[f"{info}/METADATA"] = _with_licenses(members[f"{info}/METADATA"], component.license_files)
    _, version, _, tags = parse_wheel_filename(raw.name)
    tag = next(iter(tags))
    members[f"{info}/WHEEL"] = _with_tag(members[f"{info}/WHEEL"], f"{tag.interpreter}-{tag.abi}-{abi.platform}")
    record = _record(request, source, facts, abi, code, sources=bool(lowered_sources(members)))
    members[f"{info}/archwright.json"] = (json.dumps(record, indent=1, sort_keys=True) + "\n").encode()
    members[f"{info}/sboms/{component.distribution}.cdx.json"] = _sbom(request, source)
    promise = Promise(component, request.target, request.arches, request.toolkit)
    final = folder / f"{raw.name.split('-')[0]}-{version}-{tag.interpreter}-{tag.abi}-{abi.platform}.whl"
    with write_errors(final):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".unchecked-", dir=folder) as unchecked:
            written = Path(unchecked) / final.name
            _write_wheel(written, members, info)
            report.rejected.mkdir(parents=True, exist_ok=True)
            (report.rejected / final.name).unlink(missing_ok=True)
            if failed := gate_error(inspect_wheel(written, promise=promise).findings, final.name):
                kept = shutil.move(written, report.rejected / final.name)
                raise replace(failed, fix=f"{failed.fix}. The wheel is kept: {kept}")
            written.replace(final)
    return final


def _sbom(request: Request, source: SourceTree) -> bytes:
    from .sbom import make_sbom  # slow to import, and not needed for the metadata alone

    return make_sbom(request, source, _epoch()).encode()


def finish_metadata(path: Path, component: Component) -> None:
    """Make the METADATA file that was prepared before the build equal to the finished wheel's."""
    path.write_bytes(_with_licenses(path.read_bytes(), component.license_files))


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
    request: Request, source: SourceTree, facts: Mapping[str, Any], abi: Abi, code: DeviceCode, *, sources: bool
) -> dict[str, Any]:
    """`archwright.json`: what this wheel is and how it was made. No path, time or host name.

    `sources` says that it holds lowered sources in place of kernels.
    """
    environment = request.environment
    return {
        "schema": 1,
        "component": request.component.name,
        **facts,
        "gencodes": list(request.arches) if request.component.has_device_code else [],
        "requires": request.requires,
        "source": {"distribution": request.component.origin, "sha256": source.sha256, "patches": source.patches},
        "toolchain": {
            "nvcc": environment.nvcc,
            "gcc": environment.gcc,
            "gcc_origin": environment.compiler_origin,
            "gcc_packages": environment.compiler_packages,
            "torch": environment.torch,
            **({"torch_npu": request.component.torch_npu} if request.component.torch_npu else {}),
            **({"cann": compiler_facts(request.cann)} if request.cann else {}),
            "nccl": environment.nccl,
            "python": environment.python,
            "locks": environment.locks,
        },
        "abi": {
            "platform": abi.platform,
            "needs": abi.needs,
            "libraries": sorted({name for binary in code.binaries for name in binary.dynamic.needed}),
        },
        "kernels": [kernel.as_dict() for kernel in code.kernels],
        **({"inventory": code.inventory} if request.target.is_ascend else {}),
        "claims": {
            **({"device_compile": DEVICE_COMPILE} if request.target.is_ascend else {}),
            "compiles": _LOWERED if sources else "this wheel was compiled and passed inspection",
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
            runs = data[:4] == b"\x7fELF" or (data[:3] == b"#!/" and "/bin/" in name)
            entry.external_attr = (0o100755 if runs else 0o100644) << 16
            archive.writestr(entry, data)


def _csv(name: str) -> str:
    return f'"{name}"' if "," in name else name


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
