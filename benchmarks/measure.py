"""A meter for one command and everything that it starts: wall time, CPU seconds and peak memory."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["INTERVAL", "MEMORY_IS", "Measurement", "measure"]

INTERVAL = 0.5
MEMORY_IS = (
    f"sum over the process tree of PSS (a shared page counts once), sampled every {INTERVAL} s: PSS is read when the "
    "tree's RSS, which costs nothing to read, is over 1 % above its former maximum"
)


@dataclass(frozen=True)
class Measurement:
    """What a command took. `cpu` is user + system time of the command and all processes that it waited for."""

    wall: float
    cpu: float
    peak_mib: float
    returncode: int


def measure(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], log: Path) -> Measurement:
    """Run `command` with standard output in `log` and standard error in `<log>.err`, and measure it."""
    with log.open("wb") as out, log.with_name(f"{log.name}.err").open("wb") as err:
        start = time.monotonic()
        child = subprocess.Popen(command, cwd=cwd, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        meter = _Meter(child.pid)
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            child.wait()
            raise
        finally:
            meter.stop()
        wall = time.monotonic() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    return Measurement(wall, usage.ru_utime + usage.ru_stime, meter.peak / 2**20, child.returncode)


class _Meter:
    """Samples the memory of a process tree in a thread until stopped."""

    def __init__(self, pid: int) -> None:
        self.peak = 0.0
        self._highest = 0.0
        self._root = psutil.Process(pid)
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._done.wait(INTERVAL):
            try:
                tree = [self._root, *self._root.children(recursive=True)]
            except psutil.Error:
                return
            resident = sum(_memory(process, exact=False) for process in tree)
            if resident > 1.01 * self._highest:  # reading the PSS of a 9 GB compiler takes a tenth of a second
                self._highest = resident
                self.peak = max(self.peak, sum(_memory(process, exact=True) for process in tree))


def _memory(process: psutil.Process, *, exact: bool) -> float:
    try:
        return float(process.memory_full_info().pss if exact else process.memory_info().rss)
    except (psutil.Error, OSError):
        return 0.0  # it has ended
