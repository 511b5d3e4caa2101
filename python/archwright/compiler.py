"""Choosing the host C++ compiler: `CXX`, then PATH, then one provisioned into the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .debian import provision
from .errors import fail
from .process import clean_environment

__all__ = ["MINIMUM", "HostCompiler", "choose_compiler", "find_compiler"]

#: First GCC with std::format, which upstream's host code uses.
MINIMUM = 13


@dataclass(frozen=True)
class HostCompiler:
    """A g++ that was run and asked. `origin` is how it was found; `packages` are those provisioned, with sha256."""

    cxx: Path
    cc: Path
    version: str
    origin: str
    has_libdw: bool
    packages: dict[str, str]

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def find_compiler() -> HostCompiler | None:
    """The compiler that `CXX` names, or the newest fitting g++ on PATH; None when there is none.

    Raises AW303 when `CXX` names something that is not GCC or is too old: the user chose it.
    """
    named = os.environ.get("CXX")
    if named:
        found = _probe(named, "CXX")
        if found is None or found.major < MINIMUM:
            raise fail(
                "AW303",
                found=f"CXX={named}" + (f", GCC {found.version}" if found else ", which is no working GCC"),
                needed=f"GCC {MINIMUM} or newer with libstdc++ that has <format>",
                why="upstream's host code is C++20 and includes <format>",
                fix="point CXX at a newer g++, or unset it: a fitting compiler is then provisioned into the cache",
            )
        return found
    names = ("g++", *(f"g++-{major}" for major in range(MINIMUM, MINIMUM + 4)))
    fitting = [c for c in (_probe(name, "PATH") for name in names) if c and c.major >= MINIMUM]
    # one without libdw's headers would only fail later: then the provisioned one, which has them, is better
    complete = [c for c in fitting if c.has_libdw]
    return max(complete, key=lambda c: c.major, default=None)


def choose_compiler(*, offline: bool = False) -> HostCompiler:
    """`find_compiler`, else the provisioned one. Raises AW303, AW304 and AW313."""
    found = find_compiler()
    if found is None:
        made = provision(offline=offline)
        found = _probe(str(made.cxx), "provisioned from Debian packages", made.packages)
        if found is None:
            raise fail(
                "AW303",
                found=f"{made.cxx} does not run",
                needed="a working provisioned compiler",
                why="the unpacked compiler or its libraries were damaged",
                fix=f"delete {made.cxx.parents[1]} and run it again",
            )
    if not found.has_libdw:
        raise fail(
            "AW313",
            found=f"{found.cxx} does not find elfutils/libdwfl.h",
            needed="libdw's headers",
            why="DeepJIT (inside DeepGEMM and DeepEP) includes them",
            fix="`apt install libdw-dev` or `dnf install elfutils-devel`, or unset CXX to use the provisioned compiler",
        )
    return found


def _probe(name: str, origin: str, packages: dict[str, str] | None = None) -> HostCompiler | None:
    path = shutil.which(name)
    if path is None:
        return None
    try:
        version = _ask([path, "-dumpfullversion", "-dumpversion"], "")
        macros = _ask([path, "-x", "c++", "-dM", "-E", "-"], "")
    except (OSError, subprocess.SubprocessError):
        return None
    if not re.fullmatch(r"\d+(\.\d+)*", version.strip()) or "__clang__" in macros:
        return None
    resolved = Path(path)
    cc = resolved.with_name(resolved.name.replace("g++", "gcc"))
    try:
        _ask([path, "-x", "c++", "-E", "-"], "#include <elfutils/libdwfl.h>\n")
        has_libdw = True
    except subprocess.SubprocessError:
        has_libdw = False
    return HostCompiler(resolved, cc, version.strip(), origin, has_libdw, packages or {})


def _ask(command: list[str], text: str) -> str:
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=True, timeout=60, env=clean_environment()
    ).stdout
