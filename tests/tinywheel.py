"""Tiny wheels that pip and uv install, and locks of them."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from archwright.sources import sha256_of

__all__ = ["tiny_wheel", "write_lock"]


def tiny_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    tag: str = "py3-none-any",
    *,
    data: bytes = b"",
    requires: Sequence[str] = (),
) -> Path:
    """A wheel of one module (and `data`), with a RECORD; the same bytes every time."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {text}\n" for text in requires)
    members = {
        f"{module}.py": b"value = 1\n",
        f"{module}.bin": data,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    digests = {member: hashlib.sha256(content).digest() for member, content in members.items()}
    rows = [
        f"{member},sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()},{len(members[member])}\n"
        for member, digest in digests.items()
    ]
    members[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    path = folder / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(zipfile.ZipInfo(member), content)
    return path


def write_lock(path: Path, *wheels: Path, marker: str = "", via: str = "a test") -> None:
    """A hash lock of `wheels`, which `via` asked for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for wheel in wheels:
        name, version, *_ = wheel.name.split("-")
        lines.append(
            f"{canonicalize_name(name)}=={version}{marker} \\\n    --hash=sha256:{sha256_of(wheel)}\n    # via {via}\n"
        )
    path.write_text("# a lock\n" + "".join(lines))
