"""Where things are: the project tree (recipes, CMake modules, locks) and the cache."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import platformdirs

from .errors import fail

__all__ = [
    "cache_dir",
    "cache_path",
    "free_bytes",
    "output_root",
    "project_root",
    "replace_text",
    "require_space",
    "wheels_folder",
    "write_errors",
    "write_if_changed",
]

_PACKAGE = Path(__file__).resolve().parent


def project_root() -> Path:
    """The folder with `csrc/`, `cmake/` and `envs/`: a checkout, or the copy inside an installed wheel."""
    installed = _PACKAGE / "_project"
    return installed if installed.is_dir() else _PACKAGE.parents[1]


def output_root() -> Path:
    """Where `dist/` goes: the checkout, else the working folder."""
    root = project_root()
    return root if (root / "pyproject.toml").is_file() else Path.cwd()


def wheels_folder(target: str) -> Path:
    """Where the wheels of `target` go unless someone says otherwise."""
    return output_root() / "dist" / target


def cache_path() -> Path:
    """Where the cache outside the work tree is or will be: `$ARCHWRIGHT_CACHE`, else in the user's cache folder."""
    chosen = os.environ.get("ARCHWRIGHT_CACHE")
    return Path(chosen).absolute() if chosen else platformdirs.user_cache_path("archwright", appauthor=False)


def cache_dir() -> Path:
    """`cache_path`, which is made when it is not there. Raises AW327 when it cannot be."""
    path = cache_path()
    with write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def free_bytes(path: Path) -> int:
    """Free bytes on the file system that holds `path` or its nearest existing parent."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def require_space(path: Path, needed: int, purpose: str) -> None:
    """Raise AW308 unless `needed` bytes are free where `path` is or will be."""
    free = free_bytes(path)
    if free < needed:
        raise fail(
            "AW308",
            found=f"{free / 1e9:.1f} GB free at {path}",
            needed=f"{needed / 1e9:.1f} GB for {purpose}",
            why="a disk that fills up halfway wastes the time spent until then",
            fix="free some space, or point ARCHWRIGHT_CACHE (or --out) at a larger disk",
        )


def replace_text(path: Path, text: str) -> None:
    """Write `text` to `path` whole or not at all: readers, and a disk that fills up, never leave half of it."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_if_changed(path: Path, text: str) -> Path:
    """Write `text` unless the file has it already, so that nothing that depends on it is made again."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return path


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn what keeps `path` from being written into AW308 (a full disk or quota) or AW327 (no permission)."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise fail(
                "AW308",
                found=f"writing {where} stopped: {error.strerror}",
                needed="room for the whole file",
                why="nothing half-written is kept, so this step left no result",
                fix="free some space, or point ARCHWRIGHT_CACHE (or --out) at a larger disk, and run it again",
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.ENOTDIR):
            raise fail(
                "AW327",
                found=f"{where} cannot be written: {error.strerror}",
                needed="a folder that can be written",
                why="sources, environments and the compiler are kept in the cache, wheels in the output folder",
                fix="point ARCHWRIGHT_CACHE (or --out) at a folder that can be written",
            ) from error
        raise
