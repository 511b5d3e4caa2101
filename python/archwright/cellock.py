"""One build of a cell at a time: a lock that says who holds it and that a dead process does not keep."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from .errors import fail

__all__ = ["HELD", "cell_lock"]

#: Set for child processes of the one that holds the locks of a build.
HELD = "ARCHWRIGHT_LOCKSHELD"


@contextlib.contextmanager
def cell_lock(folder: Path, *, wait: bool = True, on_wait: Callable[[str], None] = print) -> Iterator[None]:
    """Hold the lock of the build folder `folder`; wait for another build of it, saying who that is.

    The operating system drops the lock when its holder dies, so nothing is left behind. With `wait` false,
    raises AW503 when it is held.
    """
    if os.environ.get(HELD):
        yield
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f".{folder.name}.lock")
    lock = filelock.FileLock(path, timeout=0)
    holder = path.with_suffix(".holder")
    try:
        lock.acquire()
    except filelock.Timeout:
        who = _read(holder)
        if not wait:
            raise fail(
                "AW503",
                found=f"{folder} is being built by {who}",
                needed="one build of a cell at a time",
                why="two builds in one folder would overwrite each other's objects",
                fix="wait for it, or leave --no-wait out to do so automatically",
            ) from None
        on_wait(f"waiting: {folder} is being built by {who}")
        lock.acquire(timeout=-1)
    try:
        holder.write_text(f"process {os.getpid()} since {time.strftime('%H:%M:%S')}", encoding="utf-8")
        yield
    finally:
        holder.unlink(missing_ok=True)
        lock.release()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return "another process"
