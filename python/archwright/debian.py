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

The downloaded packages are kept, by hash, so that a bundle can hold them and the compiler can be made again offline.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

from .errors import fail
from .files import copy_verified
from .process import CommandFailed, run
from .project import cache_dir, replace_text, require_space, write_errors
from .sources import sha256_of

__all__ = [
    "COMPILER_RELEASE",
    "SYSROOT_RELEASE",
    "PackageParts",
    "Provisioned",
    "can_provision",
    "fetch_packages",
    "keep_packages",
    "kept_package",
    "provision",
]

COMPILER_RELEASE = "trixie"
SYSROOT_RELEASE = "bookworm"
_RECIPE = 2  # raise when the layout below changes, so that old prefixes are not reused
_KNOWN_RELEASES = ("bookworm", "trixie")
_OWN_COMPILER = (
    "install GCC 13 or newer yourself (`dnf install gcc-toolset-14`, `conda install gxx`) and name it in CXX"
)
_PACKAGES = {
    "compiler": (COMPILER_RELEASE, ["g++-14"]),
    "sysroot": (SYSROOT_RELEASE, ["libc6-dev", "libstdc++6", "libdw-dev"]),
}
#: The sha256 of each package file, by its name, of each part: `compiler` and `sysroot`.
type PackageParts = dict[str, dict[str, str]]

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
    """Whether `provision` has what it needs here: kept packages, or apt and a source entry for a release we know."""
    if not _missing_tools(("dpkg-deb",)) and _read_kept(_prefix().name):
        return True
    return not _missing_tools() and bool(_source_files())


def provision(*, offline: bool = False) -> Provisioned:
    """Return the provisioned compiler, making it when the cache has none: from packages that were kept, else with apt.

    Raises AW304 when this is not Debian, when the packages cannot be fetched, or with `offline` when they would have
    to be; AW308 when the disk fills up.
    """
    prefix = _prefix()
    record = prefix / "provisioned.json"
    with write_errors(prefix):
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(prefix.parent / f".{prefix.name}.lock"):
            if not record.is_file():
                _make(prefix, offline)
    packages = json.loads(record.read_text())["packages"]
    return Provisioned(prefix / "bin" / "g++", prefix / "bin" / "gcc", prefix / "sysroot", packages)


def fetch_packages(*, offline: bool = False, report: Callable[[str], None] = lambda message: None) -> PackageParts:
    """The packages that the compiler is made of, kept in the cache; with apt when they are not there yet.

    A compiler that was made before packages were kept may have been made of older ones than apt has now.
    """
    prefix = _prefix()
    with write_errors(prefix):
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(prefix.parent / f".{prefix.name}.lock"):
            parts = _read_kept(prefix.name)
            if parts is None:
                report("downloading the compiler's packages")
                parts = _download(prefix, offline)
    record = prefix / "provisioned.json"
    if record.is_file() and json.loads(record.read_text())["packages"] != _all_of(parts):
        report("the compiler's packages are others now than those that this machine's compiler was made of")
    return parts


def keep_packages(parts: PackageParts, folder: Path) -> None:
    """Put the package files in `folder` into the cache, for `provision`. One that has a compiler is left alone.

    Raises AW201 for a file that does not have its sha256.
    """
    prefix = _prefix()
    with write_errors(prefix):
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(prefix.parent / f".{prefix.name}.lock"):
            if (prefix / "provisioned.json").is_file():
                return
            for name, digest in _all_of(parts).items():
                copy_verified(folder / name, kept_package(digest), digest)
            _write_kept(prefix.name, parts)


def kept_package(digest: str) -> Path:
    """Where the package file with this sha256 is, or would be."""
    return cache_dir() / "compilers" / "packages" / f"{digest}.deb"


def _prefix() -> Path:
    return cache_dir() / "compilers" / f"gcc14-{SYSROOT_RELEASE}-{os.uname().machine}-r{_RECIPE}"


def _all_of(parts: PackageParts) -> dict[str, str]:
    return {name: digest for packages in parts.values() for name, digest in packages.items()}


def _read_kept(name: str) -> PackageParts | None:
    """What was kept for the prefix called `name`; None unless every file of it is there as it was."""
    try:
        parts: PackageParts = json.loads((cache_dir() / "compilers" / "packages" / f"{name}.json").read_text())["parts"]
        if parts.keys() != _PACKAGES.keys() or any(sha256_of(kept_package(d)) != d for d in _all_of(parts).values()):
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return parts


def _write_kept(name: str, parts: PackageParts) -> None:
    folder = cache_dir() / "compilers" / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / f"{name}.json", json.dumps({"parts": parts}, indent=1))


def _make(prefix: Path, offline: bool) -> None:
    require_space(prefix, 1 << 30, "GCC 14 and its sysroot")
    machine = os.uname().machine
    parts = _read_kept(prefix.name) or _download(prefix, offline)
    if _missing_tools(("dpkg-deb",)):
        raise _cannot("no dpkg-deb on this machine, which unpacks the compiler's packages", _OWN_COMPILER)
    shutil.rmtree(prefix, ignore_errors=True)  # half-made: it has no record
    for part, packages in parts.items():
        _unpack(prefix / part, packages, drop=_NOT_IN_COMPILER if part == "compiler" else ())
        _make_links_relative(prefix / part)
    _relocate(prefix / "compiler", machine)
    _merge_libstdcxx(prefix, machine)
    _write_wrappers(prefix, machine)
    replace_text(prefix / "provisioned.json", json.dumps({"packages": _all_of(parts), "parts": parts}, indent=1))


def _unpack(into: Path, packages: dict[str, str], drop: Sequence[str]) -> None:
    into.mkdir(parents=True)
    for name, digest in sorted(packages.items()):
        if not name.startswith(tuple(f"{dropped}_" for dropped in drop)):
            try:
                run(["dpkg-deb", "-x", kept_package(digest), into])
            except CommandFailed as error:
                raise _cannot(f"unpacking {name} failed: {_last_lines(error.output)}", "check the disk") from error


def _download(prefix: Path, offline: bool) -> PackageParts:
    """Both parts' packages, with apt, kept in the cache."""
    if offline:
        raise _cannot("no provisioned GCC in the cache, and --offline", "run it once with a network")
    if _missing_tools() or not _source_files():
        missing = " and no ".join(_missing_tools()) or "apt source entry for Debian 12 or 13"
        raise _cannot(f"no {missing} on this machine", _OWN_COMPILER)
    parts = {part: _download_part(prefix / part, release, names) for part, (release, names) in _PACKAGES.items()}
    _write_kept(prefix.name, parts)
    return parts


def _download_part(part: Path, release: str, names: list[str]) -> dict[str, str]:
    """Download `names` and all they depend on from `release`; an empty dpkg status gives all of it."""
    work = part.parent.with_name(f".{part.parent.name}.{part.name}.{uuid.uuid4().hex[:8]}.apt")
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
        packages = {deb.name: sha256_of(deb) for deb in sorted((work / "cache" / "archives").glob("*.deb"))}
        for name, digest in packages.items():
            kept_package(digest).parent.mkdir(exist_ok=True)
            (work / "cache" / "archives" / name).replace(kept_package(digest))
        return packages
    except CommandFailed as error:
        raise _cannot(
            f"`{' '.join(error.command[:1])} ... {error.command[-1]}` for Debian release {release} failed: "
            f"{_last_lines(error.output)}",
            "check that the machine's Debian mirror carries both releases, or name a GCC 13 or newer in CXX",
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _missing_tools(tools: Sequence[str] = ("apt-get", "dpkg-deb")) -> list[str]:
    return [tool for tool in tools if shutil.which(tool) is None]


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
