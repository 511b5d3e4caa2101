"""Installing a hash lock into a new virtual environment: uv or pip does it, and every hash is checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .errors import fail
from .indexes import Installer, index_settings
from .interpreter import Interpreter
from .process import CommandFailed, clean_environment, run
from .project import require_space

__all__ = ["PackageSource", "forget_cached", "install_lock"]


@dataclass(frozen=True)
class PackageSource:
    """Where locked packages come from: the configured index, the installer's cache (`offline`), or a folder.

    `wheels` is a folder that has every file, such as a bundle's: nothing else is asked then.
    """

    installer: Installer = Installer.UV
    offline: bool = False
    wheels: Path | None = None


def install_lock(prefix: Path, lock: Path, interpreter: Interpreter, source: PackageSource) -> None:
    """Make a virtual environment at `prefix` and install exactly what `lock` names. Raises AW306 and AW308."""
    strict: list[str | Path] = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", lock]
    env = clean_environment() | {"UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    commands = _with_uv if source.installer is Installer.UV else _with_pip
    try:
        for command, more in commands(prefix, strict, interpreter, source):
            run(command, env=env | more, timeout=3600)
    except (CommandFailed, OSError) as error:
        output = error.output if isinstance(error, CommandFailed) else str(error)
        if "No space left" in output or os.strerror(28) in output:
            require_space(prefix, 1 << 62, f"installing {lock.name}")
        raise fail(
            "AW306",
            found=f"installing {lock} with {source.installer} failed",
            needed="every locked package with the hash that the lock names",
            why="a package that is missing or differs makes another environment than the locked one",
            fix="check the network and `pip config list`; try --installer "
            + ("pip" if source.installer is Installer.UV else "uv"),
            detail=output[-3000:],
        ) from error


type _Commands = list[tuple[list[str | Path], dict[str, str]]]


def _with_uv(prefix: Path, strict: list[str | Path], interpreter: Interpreter, source: PackageSource) -> _Commands:
    from uv import find_uv_bin

    uv, settings = find_uv_bin(), index_settings()
    where: list[str | Path] = []
    quiet = ["--quiet", *(["--offline"] if source.offline or source.wheels else [])]
    if source.wheels:
        where = ["--no-index", "--find-links", source.wheels]
    elif settings.no_index:  # pip's variable, which uv does not read
        where = ["--no-index", *(f"--find-links={link}" for link in settings.find_links)]
    index = settings.uv_environment()
    if os.environ.get("UV_LINK_MODE") == "symlink":
        index["UV_LINK_MODE"] = "hardlink"  # an environment of links would end with uv's cache
    return [
        ([uv, "venv", *quiet, "--python", interpreter.path, prefix], index),
        ([uv, "pip", "install", *quiet, "--python", prefix / "bin" / "python", *strict, *where], index),
    ]


def _with_pip(prefix: Path, strict: list[str | Path], interpreter: Interpreter, source: PackageSource) -> _Commands:
    where: list[str | Path] = ["--no-index"] if source.offline or source.wheels else []
    if source.wheels:
        where += ["--find-links", source.wheels]
    pip: list[str | Path] = [prefix / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    return [([interpreter.path, "-m", "venv", prefix], {}), ([*pip, *strict, *where], {})]


def forget_cached(packages: tuple[str, ...]) -> None:
    """Have uv forget its unpacked copies of `packages`.

    It hard-links them into environments: what is edited in one is edited in the cache, and would come back.
    """
    from uv import find_uv_bin

    if packages:
        run([find_uv_bin(), "cache", "clean", "--quiet", *packages], env=clean_environment())
