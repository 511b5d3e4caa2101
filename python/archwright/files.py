"""Large files: hashing many of them in threads, and placing copies that are complete or not there."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from .errors import fail

__all__ = ["copy_verified", "hash_files", "link_or_copy"]

_CHUNK = 1 << 20
_REPORTED = 1 << 30  # progress is reported each time that this many more bytes were read


def hash_files(paths: Iterable[Path], report: Callable[[str], None] = lambda message: None) -> dict[Path, str]:
    """The sha256 of each file, computed in threads. A file that cannot be read gives the error's words instead.

    Ctrl-C ends it at once.
    """
    sizes = {path: path.lstat().st_size for path in paths}
    total, read, reported = sum(sizes.values()), 0, 0
    stop = threading.Event()
    digests = {}
    with ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0)))) as pool:
        futures = {pool.submit(_hash, path, stop): path for path in sorted(sizes, key=lambda p: -sizes[p])}
        try:
            for future in as_completed(futures):
                path = futures[future]
                digests[path] = future.result()
                read += sizes[path]
                if read - reported >= _REPORTED:
                    reported = read
                    report(f"  {read / 1e9:.1f} of {total / 1e9:.1f} GB")
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return digests


def _hash(path: Path, stop: threading.Event) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb", buffering=0) as file:
            while not stop.is_set() and (chunk := file.read(_CHUNK)):
                digest.update(chunk)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return digest.hexdigest()


def copy_verified(source: Path, target: Path, digest: str) -> None:
    """Copy `source`, which must have the sha256 `digest`, to `target`, whole or not at all.

    A `target` that has that hash already is left alone. Raises AW201 when `source` has another hash.
    """
    if target.is_file() and _hash(target, threading.Event()) == digest:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        shutil.copyfile(source, partial)
        found = _hash(partial, threading.Event())
        if found != digest:
            raise fail(
                "AW201",
                found=f"{source} with sha256 {found}",
                needed=f"sha256 {digest}",
                why="another file than the recorded one would be used",
                fix="copy it again from where it was made",
            )
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, or a copy where that cannot be."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
