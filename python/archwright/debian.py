"""Provisioning GCC 14 and a sysroot from Debian's packages into the cache, never into the system.

The compiler's packages come from the Debian release that has GCC 14 (13, "trixie"); the sysroot (libc headers and
stubs, libstdc++.so, libdw's headers) from Debian 12 ("bookworm"), so that what is linked needs no newer C library than
that, whichever Debian builds it. Both are reached through copies of the machine's own apt source entries with the suite
changed, so its mirror and keyring are used and no address is written here. apt's signatures vouch for every package.

Facts that this rests on, each tried: Debian's GCC finds its own parts relative to where it lies; its binaries need
their ELF interpreter and RPATH pointed at the unpacked libraries (RPATH, not RUNPATH: libbfd needs libsframe); the
linker plug-in cannot be loaded then (`-fno-use-linker-plugin`). Objects of GCC 14 may want symbols newer than Debian
12's libstdc++.so has; like Red Hat's toolset, libstdc++.so becomes a linker script that takes what the shared
library lacks from libstdc++.a.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import filelock

from .errors import fail
from .process import CommandFailed, run
from .project import cache_dir, replace_text, require_space, space_errors
from .sources import sha256_of

__all__ = ["COMPILER_RELEASE", "SYSROOT_RELEASE", "Provisioned", "can_provision", "provision"]

COMPILER_RELEASE = "trixie"
SYSROOT_RELEASE = "bookworm"
_RECIPE = 2  # raise when the layout below changes, so that old prefixes are not reused
_KNOWN_RELEASES = ("bookworm", "trixie")
_PACKAGES = {
    "compiler": (COMPILER_RELEASE, ["g++-14"]),
    "sysroot": (SYSROOT_RELEASE, ["libc6-dev", "libstdc++6", "libdw-dev"]),
}
#: These belong to the sysroot; in the compiler's prefix they would shadow it.
_NOT_IN_COMPILER = ("libc6-dev", "libcrypt-dev", "linux-libc-dev", "libc-dev-bin", "rpcsvc-proto")


@dataclass(frozen=True)
class Provisioned:
    """A compiler prefix in the cache. `packages` maps each Debian package file to its sha256."""

    cxx: Path
    cc: Path
    sysroot: Path
    packages: dict[str, str]


def can_provision() -> bool:
    """Whether `provision` has what it needs here: apt, and a source entry for a Debian release that we know."""
    return not _missing_tools() and bool(_source_files())


def provision(*, offline: bool = False) -> Provisioned:
    """Return the provisioned compiler, making it when the cache has none.

    Raises AW304 when this is not Debian, when the packages cannot be fetched, or with `offline` when they would have
    to be; AW308 when the disk fills up.
    """
    machine = os.uname().machine
    prefix = cache_dir() / "compilers" / f"gcc14-{SYSROOT_RELEASE}-{machine}-r{_RECIPE}"
    record = prefix / "provisioned.json"
    with space_errors(prefix):
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(prefix.parent / f".{prefix.name}.lock"):
            if not record.is_file():
                if offline:
                    raise _cannot("no provisioned GCC in the cache, and --offline", "run it once with a network")
                _make(prefix, machine)
    packages = json.loads(record.read_text())["packages"]
    return Provisioned(prefix / "bin" / "g++", prefix / "bin" / "gcc", prefix / "sysroot", packages)


def _make(prefix: Path, machine: str) -> None:
    require_space(prefix, 1 << 30, "GCC 14 and its sysroot")
    missing = _missing_tools()
    if not can_provision():
        raise _cannot(
            f"no {' and no '.join(missing) or 'apt source entry for Debian 12 or 13'} on this machine",
            "install GCC 13 or newer yourself (`dnf install gcc-toolset-14`, `conda install gxx`) and name it in CXX",
        )
    shutil.rmtree(prefix, ignore_errors=True)  # half-made: it has no record
    packages: dict[str, str] = {}
    with space_errors(prefix):
        for part, (release, names) in _PACKAGES.items():
            packages |= _unpack_packages(
                prefix / part, release, names, drop=_NOT_IN_COMPILER if part == "compiler" else ()
            )
            _make_links_relative(prefix / part)
        _relocate(prefix / "compiler", machine)
        _merge_libstdcxx(prefix, machine)
        _write_wrappers(prefix, machine)
        replace_text(prefix / "provisioned.json", json.dumps({"packages": packages}, indent=1))


def _unpack_packages(into: Path, release: str, names: list[str], drop: tuple[str, ...]) -> dict[str, str]:
    """Download `names` and all they depend on from `release` and unpack them; an empty dpkg status gives all of it."""
    work = into.with_name(f".{into.name}.{uuid.uuid4().hex[:8]}.apt")
    try:
        for folder in ("lists/partial", "cache/archives/partial", "sources.d"):
            (work / folder).mkdir(parents=True)
        (work / "status").touch()
        for source in _source_files():
            text = _with_release(source.read_text(), release)
            if text:
                (work / "sources.d" / source.name).write_text(text)
        options = {
            "Dir::State::Lists": work / "lists",
            "Dir::State::status": work / "status",
            "Dir::Cache": work / "cache",
            "Dir::Etc::SourceList": "/dev/null",
            "Dir::Etc::SourceParts": work / "sources.d",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
            "Debug::NoLocking": "true",
        }
        apt = ["apt-get", "-q", "-y", *(word for key, value in options.items() for word in ("-o", f"{key}={value}"))]
        run([*apt, "update"], timeout=600)
        run([*apt, "--download-only", "install", *names], timeout=900)
        debs = sorted((work / "cache" / "archives").glob("*.deb"))
        into.mkdir(parents=True)
        for deb in debs:
            if not deb.name.startswith(tuple(f"{name}_" for name in drop)):
                run(["dpkg-deb", "-x", deb, into])
        return {deb.name: sha256_of(deb) for deb in debs}
    except CommandFailed as error:
        raise _cannot(
            f"`{' '.join(error.command[:1])} ... {error.command[-1]}` for Debian release {release} failed: "
            f"{_last_lines(error.output)}",
            "check that the machine's Debian mirror carries both releases, or name a GCC 13 or newer in CXX",
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _missing_tools() -> list[str]:
    return [tool for tool in ("apt-get", "dpkg-deb") if shutil.which(tool) is None]


def _source_files() -> list[Path]:
    """apt source files of this machine that name a Debian release we know (third-party sources do not)."""
    parts = Path("/etc/apt/sources.list.d")
    files = [Path("/etc/apt/sources.list"), *sorted(parts.glob("*.sources")), *sorted(parts.glob("*.list"))]
    return [f for f in files if f.is_file() and _with_release(f.read_text(errors="replace"), "x")]


def _with_release(text: str, release: str) -> str:
    """`text`'s entries for the release's main suite and its security suite, with the release's name replaced."""
    old = "|".join(_KNOWN_RELEASES)
    if re.search(r"^Types:", text, re.M):
        kept = []
        for stanza in re.split(r"\n\s*\n", text):
            stanza = re.sub(r"^#.*\n?", "", stanza, flags=re.M)
            match = re.search(rf"^Suites:.*?\b({old})(-security)?(?![\w-])", stanza, re.M)
            if match:
                kept.append(re.sub(r"^Suites:.*$", f"Suites: {release}{match[2] or ''}", stanza, flags=re.M))
        return "\n\n".join(kept)
    lines = [
        re.sub(rf"\b({old})(?=(-security)?\s)", release, line)
        for line in text.splitlines()
        if re.match(rf"deb\s.*\s({old})(-security)?\s", line)
    ]
    return "\n".join(lines) + "\n" if lines else ""


def _make_links_relative(root: Path) -> None:
    """Point absolute links into `root`: the sysroot's loader must not be the running system's, which may be newer."""
    for link in (path for path in root.rglob("*") if path.is_symlink()):
        target = link.readlink()
        if target.is_absolute():
            link.unlink()
            link.symlink_to(os.path.relpath(root / target.relative_to("/"), link.parent))


def _relocate(compiler: Path, machine: str) -> None:
    libraries = compiler / "usr" / "lib" / f"{machine}-linux-gnu"
    loader = next(libraries.glob("ld-linux-*.so.*"))
    patchelf = _patchelf()
    for folder in ("usr/bin", "usr/libexec"):
        for path in (p for p in (compiler / folder).rglob("*") if p.is_file() and not p.is_symlink()):
            with path.open("rb") as file:
                if file.read(4) != b"\x7fELF":
                    continue
            interpreter: list[str | Path] = [] if ".so" in path.name else ["--set-interpreter", loader]
            run([patchelf, *interpreter, "--force-rpath", "--set-rpath", libraries, path])


def _patchelf() -> str:
    found = shutil.which("patchelf", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        raise _cannot("no patchelf beside this Python", "reinstall the tool: patchelf is one of its dependencies")
    return found


def _merge_libstdcxx(prefix: Path, machine: str) -> None:
    own = prefix / "compiler" / "usr" / "lib" / "gcc" / f"{machine}-linux-gnu" / "14"
    (own / "libstdc++.so").unlink()
    (own / "libstdc++.so").write_text(
        "/* GNU ld script of Archwright: the sysroot's shared library, and what it lacks from GCC 14's archive. */\n"
        f"INPUT ( =/usr/lib/{machine}-linux-gnu/libstdc++.so.6 libstdc++.a )\n"
    )


def _write_wrappers(prefix: Path, machine: str) -> None:
    """`bin/g++` and `bin/gcc`: the unpacked compilers with the flags that they need here."""
    (prefix / "bin").mkdir()
    tools = prefix / "compiler" / "usr" / "bin"
    for name in ("g++", "gcc"):
        wrapper = prefix / "bin" / name
        wrapper.write_text(
            "#!/bin/sh\n"
            f'exec "{tools}/{machine}-linux-gnu-{name}-14" -B"{tools}" --sysroot="{prefix}/sysroot" '
            '-fno-use-linker-plugin "$@"\n'
        )
        wrapper.chmod(0o755)
    for name in ("ld", "ar", "ranlib", "nm", "objcopy", "objdump", "readelf", "strip"):
        (prefix / "bin" / name).symlink_to(tools / f"{machine}-linux-gnu-{name}")


def _last_lines(text: str, count: int = 3) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:])


def _cannot(found: str, fix: str) -> Exception:
    return fail(
        "AW304",
        found=found,
        needed="GCC 13 or newer (std::format)",
        why="upstream's host code is C++20; Debian 12 has GCC 12 only",
        fix=fix,
    )
