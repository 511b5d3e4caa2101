"""Making a disconnected bundle (see `bundle` for what is in it), the same bytes each time from the same tree."""

from __future__ import annotations

import errno
import hashlib
import importlib.resources
import json
import os
import shutil
import string
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock

from . import __version__
from .bundle import ABOUT, SUMS, Bundle, lock_digests, lock_paths, open_bundle, read_bundle
from .compiler import choose_compiler
from .components import Component
from .debian import PackageParts, fetch_packages, kept_package
from .errors import ArchwrightError, fail
from .files import hash_files, link_or_copy
from .interpreter import find_python
from .lockfile import packages_for
from .process import CommandFailed, clean_environment, run
from .project import cache_dir, project_root, require_space, write_errors
from .sources import fetch_archive, sha256_of
from .targets import Target, target_table
from .wheelhouse import LockedWheel, fetch_wheels

__all__ = ["export_bundle"]


def export_bundle(
    target: Target,
    components: Sequence[Component],
    destination: Path,
    *,
    python: str | None = None,
    offline: bool = False,
    report: Callable[[str], None] = lambda message: None,
) -> Bundle:
    """Make a bundle for `target` with the sources of `components` in the new folder `destination`.

    A complete bundle of the same content is left as it is. `offline` takes everything from the cache. Raises AW109 when
    `destination` is something else or the tool does not run from a checkout, AW321 when it is the same bundle damaged,
    and what fetching raises: AW201, AW206, AW207, AW304, AW308.
    """
    _check_checkout()
    if python:
        find_python(python)  # another version than the locks' is refused here as everywhere
    about = {
        "schema": 1,
        "archwright": __version__,
        "target": target.name,
        "processor": os.uname().machine,
        "python": target_table().python,
        "glibc": target_table().processors[os.uname().machine],
        "components": {component.name: component.sha256 for component in components},
        "locks": lock_digests(target),
    }
    destination = destination.absolute()
    _check_destination(destination, about)
    partial = destination.with_name(f".{destination.name}.partial")
    with write_errors(destination), _one_at_a_time(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.rmtree(partial, ignore_errors=True)  # of one that was killed
            partial.mkdir()
            _fill(partial, target, components, about, offline, report)
            return _put(partial, destination)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _one_at_a_time(destination: Path) -> filelock.BaseFileLock:
    """A second export to the same folder waits. The lock is in the cache: nothing is left beside the bundle."""
    folder = cache_dir() / "bundles"
    folder.mkdir(exist_ok=True)
    return filelock.FileLock(folder / f".{hashlib.sha256(str(destination).encode()).hexdigest()[:16]}.lock")


def _check_checkout() -> None:
    if not (project_root() / "pyproject.toml").is_file():
        raise fail(
            "AW109",
            found=f"{project_root()}, which is an installed copy of the tool",
            needed="a checkout of the project",
            why="the bundle holds the tool itself, built from its tree",
            fix="run it in a checkout: ./bootstrap archwright env export ...; or copy the bundle that you have",
        )


def _check_destination(destination: Path, about: dict[str, Any]) -> None:
    """Refuse early what would be refused at the end: a folder that is no bundle, or another one."""
    if destination.is_dir() and not any(destination.iterdir()):
        return
    if not destination.exists() and not destination.is_symlink():
        return
    try:
        there = vars(read_bundle(destination))
        same = all(there[name] == value for name, value in about.items() if name != "schema")
    except (ArchwrightError, OSError):
        same = False
    if not same:
        raise _occupied(destination)


def _occupied(destination: Path) -> ArchwrightError:
    return fail(
        "AW109",
        found=f"{destination} is there, and is not this bundle",
        needed="a new folder, or the same bundle",
        why="nothing that somebody may need is overwritten",
        fix="name another folder with --out, or remove this one",
    )


def _put(partial: Path, destination: Path) -> Bundle:
    """Rename the finished folder, unless the same bundle is there."""
    try:
        partial.rename(destination)
    except OSError:
        if not (destination / SUMS).is_file():
            raise
        if (destination / SUMS).read_bytes() != (partial / SUMS).read_bytes():
            raise _occupied(destination) from None
        return open_bundle(destination)
    return read_bundle(destination)


def _fill(
    partial: Path,
    target: Target,
    components: Sequence[Component],
    about: dict[str, Any],
    offline: bool,
    report: Callable[[str], None],
) -> None:
    described: dict[str, str] = {}  # what each file is, by its path in the bundle
    for component in components:
        report(f"sources of {component.name}")
        name = f"sources/{component.sha256}.tar.gz"
        _add(fetch_archive(component, offline=offline), partial / name)
        described[name] = f"source archive of {component.origin} {component.version}"
    wheels = fetch_wheels(lock_paths(target), about["processor"], offline=offline, report=report)
    if not _same_disk(partial):
        require_space(partial, sum(wheel.path.stat().st_size for wheel in wheels), "the bundle")
    for wheel in wheels:
        _add(wheel.path, partial / "wheels" / wheel.path.name)
        described[f"wheels/{wheel.path.name}"] = f"wheel of {', '.join(wheel.locks)}"
    parts: PackageParts = {}
    if choose_compiler(offline=offline).packages:
        parts = fetch_packages(offline=offline, report=report)
    for part, packages in parts.items():
        for name, digest in packages.items():
            _add(kept_package(digest), partial / "compiler" / name)
            described[f"compiler/{name}"] = f"Debian package of the {part}"
    report("building the tool's own wheel")
    tool = _build_tool(partial)
    described |= {f"tool/{tool.name}": "the tool", "tool/requirements.txt": "what `setup` installs"}
    _write_texts(partial, tool, wheels, about)
    described |= {"setup": "makes an environment with the tool", "README.txt": "how to use the bundle"}
    _seal(partial, {**about, "compiler": parts}, described, report)


def _add(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    if not target.exists():  # two parts of the compiler may need one package
        link_or_copy(source, target)


def _same_disk(folder: Path) -> bool:
    return folder.stat().st_dev == cache_dir().stat().st_dev


def _build_tool(partial: Path) -> Path:
    scratch = partial / ".build"
    command: list[str | Path] = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-index"),
        *("--no-build-isolation", "--config-settings", f"build-dir={scratch / 'cmake'}"),
        *("--wheel-dir", partial / "tool", project_root()),
    ]
    try:
        run(command, env=clean_environment() | {"SOURCE_DATE_EPOCH": "315532800"}, timeout=600)
        (wheel,) = (partial / "tool").glob("archwright-*.whl")
    except (CommandFailed, ValueError) as error:
        said = error.output if isinstance(error, CommandFailed) else ""
        if os.strerror(errno.ENOSPC) in said:
            require_space(partial, 1 << 62, "the bundle")
        raise fail(
            "AW404",
            found=f"no wheel of the tool from {project_root()}",
            needed="the tool itself, for the bundle",
            why="a machine without a network has no other way to get it",
            fix="run it through ./bootstrap, which has scikit-build-core, CMake and Ninja",
            detail=said[-3000:],
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return wheel


def _write_texts(partial: Path, tool: Path, wheels: Sequence[LockedWheel], about: dict[str, Any]) -> None:
    (partial / "tool" / "requirements.txt").write_text(
        "".join(f"{line}\n" for line in _requirements(tool, about["processor"])), encoding="utf-8"
    )
    values = {name: str(about[name]) for name in ("target", "processor", "python", "glibc", "archwright")}
    values["component"] = next(iter(about["components"]), "COMPONENT")
    for name, mode in (("setup", 0o755), ("README.txt", 0o644)):
        template = importlib.resources.files(__package__).joinpath("templates", f"bundle_{name}").read_text("utf-8")
        (partial / name).write_text(string.Template(template).substitute(values), encoding="utf-8")
        (partial / name).chmod(mode)


def _requirements(tool: Path, processor: str) -> Iterator[str]:
    """The tool's lock and the tool, each with its hashes."""
    for package in packages_for(project_root() / "envs" / "tool.lock", processor).values():
        yield package.requirement
    yield f"archwright=={__version__} --hash=sha256:{sha256_of(tool)}"


def _seal(partial: Path, about: dict[str, Any], described: dict[str, str], report: Callable[[str], None]) -> None:
    """Write bundle.json and SHA256SUMS, which cover every file."""
    sizes = {name: (partial / name).stat().st_size for name in sorted(described)}
    files = {name: {"size": size, "what": described[name]} for name, size in sizes.items()}
    (partial / ABOUT).write_text(json.dumps({**about, "files": files}, indent=1) + "\n", encoding="utf-8")
    report(f"hashing {len(files)} files, {sum(sizes.values()) / 1e9:.1f} GB")
    digests = hash_files([path for path in partial.rglob("*") if path.is_file()], report)
    lines = sorted(f"{digest}  {path.relative_to(partial)}\n" for path, digest in digests.items())
    (partial / SUMS).write_text("".join(sorted(lines, key=lambda line: line[66:])), encoding="utf-8")
