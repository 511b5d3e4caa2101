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

__all__ = [
    "MAXIMUM",
    "MINIMUM",
    "NVCC_MAXIMUM",
    "HostCompiler",
    "choose_compiler",
    "conda_compiler",
    "find_compiler",
    "too_new_compiler",
]

#: First GCC with std::format, which upstream's host code uses.
MINIMUM = 13

#: Newest GCC that the nvcc of each CUDA release accepts: `#if __GNUC__ > N` in crt/host_config.h of the packages
#: nvidia-cuda-crt 13.0.88, 13.1.115, 13.2.86, 13.3.73, 13.4.92 and 13.5.37.
NVCC_MAXIMUM = {"13.0": 15, "13.1": 15, "13.2": 15, "13.3": 15, "13.4": 16, "13.5": 16}

#: That of the CUDA release which the locks of this project have; a test compares the two.
MAXIMUM = 15


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

    One on PATH that nvcc does not accept is passed over, as one that is too old is: nvcc would stop at its version in
    the first compile. Raises AW303 when `CXX` names something that is not GCC or is too old, and AW323 when it is too
    new: the user chose it.
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
        if found.major > MAXIMUM:
            raise fail(
                "AW323",
                found=f"CXX={named}, GCC {found.version}",
                needed=f"GCC {MINIMUM} to {MAXIMUM}",
                why="nvcc stops at a newer one in the first compile: unsupported GNU version",
                fix="point CXX at an older g++, or unset it: a fitting one is then found or provisioned",
            )
        return found
    names = ("g++", *(f"g++-{major}" for major in range(MINIMUM, MAXIMUM + 1)))
    fitting = [c for c in (_probe(name, "PATH") for name in names) if c and MINIMUM <= c.major <= MAXIMUM]
    # one without libdw's headers would only fail later: then the provisioned one, which has them, is better
    complete = [c for c in fitting if c.has_libdw]
    return max(complete, key=lambda c: c.major, default=None)


def too_new_compiler() -> HostCompiler | None:
    """The g++ on PATH, when it is one that `find_compiler` passes over because nvcc does not accept it."""
    found = None if os.environ.get("CXX") else _probe("g++", "PATH")
    return found if found and found.major > MAXIMUM else None


def choose_compiler(*, offline: bool = False) -> HostCompiler:
    """`find_compiler`, else the provisioned one. Raises AW303, AW304, AW313 and AW323."""
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
    return _with_libdw(found)


def conda_compiler(cxx: Path, origin: str) -> HostCompiler:
    """The g++ at `cxx`, of a conda prefix. Raises AW303 when it does not run or does not fit, AW313 without libdw."""
    found = _probe(str(cxx), origin)
    if found is None or not MINIMUM <= found.major <= MAXIMUM:
        raise fail(
            "AW303",
            found=f"{cxx}" + (f", GCC {found.version}" if found else ", which does not run"),
            needed=f"GCC {MINIMUM} to {MAXIMUM} in the conda prefix",
            why="upstream's host code includes <format>, and nvcc refuses newer releases than it knows",
            fix="correct gxx_linux-* in environment.yml, then `archwright env lock TARGET --flavour conda`",
        )
    return _with_libdw(found)


def _with_libdw(found: HostCompiler) -> HostCompiler:
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
