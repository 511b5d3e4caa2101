"""Checks of the machine itself: system, Python, compiler, memory, locale, variables, compiler cache, device."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .compiler import MAXIMUM, MINIMUM, find_compiler, too_new_compiler
from .components import available_components
from .debian import COMPILER_RELEASE, can_provision
from .errors import ArchwrightError
from .findings import Finding, Level, Repair, from_error
from .interpreter import find_python
from .plan import MEMORY_SHARE, available_cores, available_memory, make_plan
from .process import stray_variables
from .project import cache_path, output_root
from .repairs import from_pyenv, from_system, in_shell
from .targets import Target, target_table

__all__ = [
    "ccache_says",
    "check_compiler",
    "check_compiler_cache",
    "check_device",
    "check_libc",
    "check_locale",
    "check_memory",
    "check_python",
    "check_system",
    "check_variables",
]

#: Either of them is there when a driver of NVIDIA's or Huawei's is loaded.
_DRIVERS = (Path("/proc/driver/nvidia/version"), Path("/dev/davinci_manager"))

_GB = 10**9

#: A ccache smaller than this forgets the first objects of a target before its last are compiled.
_CCACHE = 2 * _GB


def check_system() -> Iterator[Finding]:
    system, machine = platform.system(), platform.machine()
    known = target_table().processors
    if system != "Linux" or machine not in known:
        yield Finding(
            "system",
            Level.FAIL,
            f"{system} on {machine}",
            f"Linux on {' or '.join(known)}",
            "the kernel libraries are for Linux servers",
            "build on a Linux machine",
            "AW310",
        )
        return
    try:
        release = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        release = "Linux"
    yield Finding("system", Level.OK, f"{release}, {machine}", code="AW310")


def check_libc() -> Iterator[Finding]:
    """The C library that this process runs with, against the oldest for which the locks are solved."""
    floor = target_table().processors.get(platform.machine())
    if floor is None:
        return
    version = glibc_version()
    if version and _numbers(version) >= _numbers(floor):
        yield Finding("C library", Level.OK, f"glibc {version}", f"glibc {floor} or newer", code="AW324")
        return
    yield Finding(
        "C library",
        Level.FAIL,
        f"glibc {version}" if version else "another C library than glibc (musl?)",
        f"glibc {floor} or newer",
        "the locked packages are manylinux wheels for that one: with an older one they cannot be installed",
        "build on a newer system; a container of one does",
        "AW324",
    )


def glibc_version() -> str:
    """As the library itself says it; empty when this process does not use glibc."""
    try:
        ask = ctypes.CDLL(None).gnu_get_libc_version
    except (OSError, AttributeError):
        return ""
    ask.restype = ctypes.c_char_p
    return bytes(ask()).decode()


def check_python(named: str | None) -> Iterator[Finding]:
    wanted = target_table().python
    try:
        found = find_python(named)
    except ArchwrightError as error:
        # one that was named stays the user's choice: another one beside it would not be taken
        packages = (f"python{wanted}-dev", f"python{wanted}-venv")
        yield from_error("python", error, () if named else from_pyenv(wanted) or from_system(packages))
        return
    yield Finding("python", Level.OK, f"CPython {found.version} at {found.path}, with headers", code="AW301")


def check_compiler() -> Iterator[Finding]:
    try:
        found = find_compiler()
    except ArchwrightError as error:
        yield from_error("compiler", error, in_shell("unset CXX"))
        return
    if passed_over := too_new_compiler():
        yield Finding(
            "newer compiler",
            Level.NOTE,
            f"GCC {passed_over.version} at {passed_over.cxx} is passed over",
            f"GCC {MINIMUM} to {MAXIMUM}",
            "nvcc stops at a newer one: unsupported GNU version",
            "nothing to do",
            "AW323",
        )
    if found is not None:
        yield Finding("compiler", Level.OK, f"GCC {found.version} at {found.cxx} (from {found.origin})", code="AW303")
        yield _libdw(found.has_libdw, str(found.cxx))
    elif can_provision():
        text = f"no GCC {MINIMUM} to {MAXIMUM} with libdw's headers here: GCC 14 of Debian {COMPILER_RELEASE} is used"
        yield Finding("compiler", Level.OK, f"{text}, in the cache", code="AW303")
    else:
        yield Finding(
            "compiler",
            Level.FAIL,
            f"no GCC {MINIMUM} to {MAXIMUM} with libdw's headers, and this is not a Debian from whose packages one "
            "could be provisioned",
            f"GCC {MINIMUM} to {MAXIMUM} and libdw's headers",
            "upstream's host code is C++20 and includes <format>, and DeepJIT includes libdw's headers",
            "install them (`dnf install gcc-toolset-14 elfutils-devel`), or name a g++ in CXX",
            "AW303",
            from_system(("g++-14", "libdw-dev"), ("g++-13", "libdw-dev")),
        )


def _libdw(present: bool, cxx: str) -> Finding:
    if present:
        return Finding("libdw", Level.OK, f"{cxx} finds its headers", code="AW313")
    return Finding(
        "libdw",
        Level.FAIL,
        f"{cxx} does not find elfutils/libdwfl.h",
        "libdw's headers",
        "DeepJIT (inside DeepGEMM and DeepEP) includes them",
        "`apt-get install libdw-dev` or `dnf install elfutils-devel`, or unset CXX to use another compiler",
        "AW313",
        from_system(("libdw-dev",)),
    )


def check_memory(target: Target) -> Iterator[Finding]:
    """What `build` without component names would plan with: measured figures where there are any."""
    chosen = tuple(c for c in available_components(target, platform.machine()) if c.units and not c.pack)
    try:
        plan = make_plan(target, chosen, target.gencodes) if chosen else None
    except ArchwrightError as error:
        if error.code not in ("AW109", "AW309"):  # what another row is about
            raise
        yield from_error("memory", error, in_shell("unset MAX_JOBS") if error.code == "AW109" else ())
        return
    if plan is None:
        memory = available_memory() * MEMORY_SHARE / 2**30
        text = f"{memory:.1f} GiB to plan with, {available_cores()} cores; nothing of {target.name} can be built yet"
    else:
        text = f"{plan.memory_mib / 1024:.1f} GiB to plan with, {plan.jobs} jobs, at most {plan.peak_mib / 1024:.1f} "
        text += f"GiB at once ({plan.measured} of {plan.files} files measured here)"
    yield Finding("memory", Level.OK, text, code="AW309")


def check_locale() -> Iterator[Finding]:
    """How a Python that is started here encodes paths and text. In the C locale it uses UTF-8 by itself."""
    ask = "import locale, sys; print(sys.getfilesystemencoding(), locale.getpreferredencoding(False))"
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False, timeout=60)
    encodings = dict.fromkeys(word.lower().replace("-", "") for word in answer.stdout.split())
    if list(encodings) == ["utf8"]:
        yield Finding("locale", Level.OK, "Python uses UTF-8", code="AW325")
        return
    paths = [cache_path(), Path(tempfile.gettempdir()), output_root(), Path(sys.executable)]
    broken = [ascii(str(path)) for path in paths if not str(path).isascii()]
    settings = ("PYTHONUTF8", "LC_ALL", "LC_CTYPE", "LANG")
    said = ", ".join(f"{name}={os.environ[name]}" for name in settings if os.environ.get(name))
    yield Finding(
        "locale",
        Level.FAIL if broken else Level.NOTE,
        f"Python uses {' and '.join(encodings) or 'an unknown encoding'} ({said})",
        "UTF-8",
        f"the names of {', '.join(broken)} reach CMake's files spelt wrongly"
        if broken
        else "it does no harm while every path is ASCII, as all are now; messages of compilers may look wrong",
        "use a UTF-8 locale: `export LC_ALL=C.UTF-8`",
        "AW325",
        in_shell("export LC_ALL=C.UTF-8", *(["unset PYTHONUTF8"] if os.environ.get("PYTHONUTF8") == "0" else [])),
    )


def check_variables() -> Iterator[Finding]:
    stray = stray_variables()
    if stray:
        yield Finding(
            "variables",
            Level.NOTE,
            ", ".join(f"{name}={value}" for name, value in stray.items()),
            "none that steer compilers",
            "builds do not see them, so they change nothing (CXX only chooses the compiler for `env create`)",
            f"nothing to do; `unset {' '.join(stray)}` quiets this note",
            "AW329",
            in_shell(f"unset {' '.join(stray)}"),
        )
    else:
        yield Finding("variables", Level.OK, "none that steer compilers", code="AW329")


def check_compiler_cache() -> Iterator[Finding]:
    found = shutil.which("ccache") or shutil.which("sccache")
    if not found:
        yield _no_cache("neither ccache nor sccache on PATH", "`apt-get install ccache`", from_system(("ccache",)))
    elif os.environ.get("ARCHWRIGHT_NO_CACHE"):
        text = "ARCHWRIGHT_NO_CACHE is set"
        yield _no_cache(text, "`unset ARCHWRIGHT_NO_CACHE`", in_shell("unset ARCHWRIGHT_NO_CACHE"))
    elif ccache_says("disable") == "true":
        by_variable = "CCACHE_DISABLE" in os.environ
        repair = (
            in_shell("unset CCACHE_DISABLE") if by_variable else (Repair(("ccache", "--set-config=disable=false")),)
        )
        yield _no_cache(f"{found} is disabled{' by CCACHE_DISABLE' if by_variable else ''}", f"`{repair[0]}`", repair)
    elif 0 < (limit := size_in_bytes(ccache_says("max_size") or "0")) < _CCACHE:
        by_variable = "CCACHE_MAXSIZE" in os.environ
        repair = in_shell("unset CCACHE_MAXSIZE") if by_variable else (Repair(("ccache", "--max-size=5G")),)
        yield _no_cache(f"{found} keeps {limit / _GB:.1f} GB at most", f"`{repair[0]}`", repair)
    else:
        yield Finding("compiler cache", Level.OK, found, code="AW330")


def _no_cache(found: str, fix: str, repairs: tuple[Repair, ...]) -> Finding:
    needed, why = f"a compiler cache of {_CCACHE / _GB:.0f} GB or more", "a fresh clone compiles everything again"
    return Finding("compiler cache", Level.NOTE, found, needed, why, fix, "AW330", repairs)


def check_device() -> Iterator[Finding]:
    if any(path.exists() for path in _DRIVERS):
        yield Finding("device", Level.OK, "a driver is loaded", code="AW331")
        return
    yield Finding(
        "device",
        Level.NOTE,
        "none: wheels compile here, but `correct` and `performs` cannot be verified",
        "a device and its driver, to verify what was built",
        "no device is needed to build",
        "verify what was built on a machine with the device",
        "AW331",
    )


def ccache_says(setting: str) -> str | None:
    """A setting of ccache; None when builds would not use ccache."""
    found = shutil.which("ccache")
    if not found or os.environ.get("ARCHWRIGHT_NO_CACHE"):
        return None
    try:
        command = [found, f"--get-config={setting}"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def size_in_bytes(text: str) -> int:
    """ccache's sizes: `5.0G`, `5.0 GB`, `500M`, `2GiB`; 0 (no limit) for what cannot be read."""
    number = text.rstrip("BbiKkMGTgt ").strip()
    unit = text[len(number) :].strip().upper()[:1]
    try:
        return int(float(number) * 1000 ** " KMGT".index(unit or "G"))
    except ValueError:
        return 0


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
