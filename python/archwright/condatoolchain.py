"""From an installed conda prefix to what a build needs: Python, GCC, the toolkit's parts; and whether it changed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from .compiler import HostCompiler, conda_compiler
from .condalock import read_conda_lock
from .condaplatform import native_platform
from .contents import Drift, DriftKind
from .files import hash_files
from .interpreter import Interpreter, find_python
from .targets import target_table
from .toolkit import ToolkitParts

__all__ = ["check_conda_prefix", "conda_compilers", "conda_python", "conda_toolkit", "without_cuda"]

#: Folder of the CUDA packages below `targets/`, by processor: conda-forge's packages follow NVIDIA's names.
_CUDA_TARGETS = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}


def conda_python(prefix: Path) -> Interpreter:
    """The Python of the prefix. Raises AW301 when it has none."""
    return find_python(str(prefix / "bin" / f"python{target_table().python}"))


def conda_compilers(prefix: Path, wrappers: Path) -> HostCompiler:
    """The prefix's GCC, behind wrappers in the new folder `wrappers` that find the prefix's headers and libraries.

    Conda's own way is to activate the prefix, which sets variables that a build here does not see. Raises AW303 and
    AW313.
    """
    wrappers.mkdir()
    for name in ("gcc", "g++"):
        program = prefix / "bin" / f"{os.uname().machine}-conda-linux-gnu-{name}"
        wrapper = wrappers / name
        wrapper.write_text(f'#!/bin/sh\nexec "{program}" "$@" -idirafter "{prefix}/include" -L"{prefix}/lib"\n')
        wrapper.chmod(0o755)
    return conda_compiler(wrappers / "g++", f"conda prefix {prefix}")


def conda_toolkit(prefix: Path) -> ToolkitParts:
    """Where conda-forge's CUDA packages put the parts of a toolkit."""
    target = prefix / "targets" / _CUDA_TARGETS[os.uname().machine]
    return ToolkitParts(prefix / "bin", target / "include", prefix / "nvvm", target / "lib")


def without_cuda(lock: str) -> str:
    """The hash lock's text without CUDA's packages: in this flavour they come from conda, the build tools do not."""
    blocks = re.split(r"(?m)^(?=[A-Za-z0-9])", lock)
    return "".join(block for block in blocks if not block.startswith(("nvidia-", "cuda-")))


def check_conda_prefix(folder: Path, lock: Path) -> tuple[Drift, ...]:
    """Compare the prefix `<folder>/conda` with its conda lock and with what was linked, by sha256."""
    prefix = folder / "conda"
    locked = read_conda_lock(lock).packages(native_platform())
    records = [json.loads(path.read_text()) for path in sorted((prefix / "conda-meta").glob("*.json"))]
    return (*_packages(locked, {r["name"]: r["version"] for r in records}), *_files(prefix, records))


def _packages(locked: dict[str, tuple[str, str, str]], found: dict[str, str]) -> Iterator[Drift]:
    for name in sorted(locked.keys() | found.keys()):
        have, want = found.get(name), locked[name][0] if name in locked else None
        if have != want:
            kind = DriftKind.OTHER_VERSION
            if have is None or want is None:
                kind = DriftKind.MISSING_PACKAGE if have is None else DriftKind.EXTRA_PACKAGE
            yield Drift("conda", kind, name, "", have or "", want or "")


def _files(prefix: Path, records: list[dict[str, object]]) -> Iterator[Drift]:
    expected: dict[Path, tuple[str, str]] = {}
    for record in records:
        paths: list[dict[str, str]] = record["paths_data"]["paths"]  # type: ignore[index]
        for entry in paths:
            digest = entry.get("sha256_in_prefix") or entry.get("sha256")
            path = prefix / entry["_path"]
            if not (path.is_symlink() or path.exists()):
                yield Drift("conda", DriftKind.MISSING_FILE, str(record["name"]), entry["_path"], "", digest or "")
            elif digest and not path.is_symlink() and path.is_file():
                expected[path] = (str(record["name"]), digest)
    for path, found in hash_files(tuple(expected)).items():
        package, digest = expected[path]
        if found != digest:
            yield Drift("conda", DriftKind.MODIFIED_FILE, package, str(path.relative_to(prefix)), found, digest)
