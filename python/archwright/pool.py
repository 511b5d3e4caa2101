"""One job pool over all components: memory first, longest unit first.

Each component's Ninja starts all of its compiles at once; every compile waits in `launcher.py` for its turn here. So
one place sees all units of all components and decides which may run: the longest that fits into the memory that is
left. It measures what each took and keeps the output of the first that failed.
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .components import Unit

__all__ = ["Failure", "Measured", "Pool", "remember_costs"]

#: What a unit costs that no recipe names: a precompiled header, CMake's own checks. Users of a precompiled header
#: wait for it, so it goes first (`seconds` ranks it above every other unit).
_UNKNOWN = Unit("", seconds=10_000, mib=2300)


@dataclass(frozen=True)
class Measured:
    """One finished compile: source, wall seconds, and peak memory of its largest process in MiB.

    `unit` is what the plan knew of it; None for what no recipe names (a precompiled header).
    """

    source: str
    seconds: float
    mib: int
    cached: bool
    unit: Unit | None = None


@dataclass(frozen=True)
class Failure:
    """The first compile that failed. `returncode` is negative for a death by signal."""

    source: str
    command: tuple[str, ...]
    returncode: int
    output: str
    mib: int


class Pool:
    """A scheduler that listens on a Unix socket (`address`) while it is entered as a context manager.

    `costs` maps absolute source paths to units; `jobs` bounds how many run at once and `memory_mib` the sum of their
    expected peaks. A unit larger than the whole budget runs alone. `on_done` is called after each compile.
    """

    def __init__(
        self,
        jobs: int,
        memory_mib: int,
        costs: Mapping[str, Unit],
        on_done: Callable[[Measured], None] = lambda measured: None,
    ) -> None:
        self.jobs = jobs
        self.memory_mib = memory_mib
        self.costs = costs
        self.failure: Failure | None = None
        self.measured: list[Measured] = []
        self._on_done = on_done
        self._changed = threading.Condition()
        self._waiting: list[tuple[float, int, Unit]] = []
        self._running: list[Unit] = []
        self._stopped = False
        self._turn = 0

    def __enter__(self) -> Pool:
        # a short path of its own: socket addresses are limited to 107 bytes
        self._folder = Path(tempfile.mkdtemp(prefix="aw-"))
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self._folder / "pool"))
        self._server.listen(256)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self._server.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def address(self) -> str:
        return str(self._folder / "pool")

    @property
    def running(self) -> tuple[str, ...]:
        with self._changed:
            return tuple(unit.path for unit in self._running)

    def stop(self) -> None:
        """Start nothing more. What runs goes on; what waits is told not to start."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rw", encoding="utf-8") as lines:
                source = json.loads(lines.readline())["source"]
                known = self.costs.get(source)
                unit = known or Unit(source, _UNKNOWN.seconds, _UNKNOWN.mib)
                go = self._wait_for_turn(unit)
                try:
                    lines.write(json.dumps({"go": go}) + "\n")
                    lines.flush()
                    if go:
                        self._finished(source, known, json.loads(lines.readline()))
                finally:
                    if go:
                        self._release(unit)
        except (OSError, ValueError, KeyError):
            return  # the launcher was killed, while it waited or with its compiler; its turn is given back

    def _wait_for_turn(self, unit: Unit) -> bool:
        with self._changed:
            self._turn += 1
            ticket = (-unit.seconds, self._turn, unit)
            self._waiting.append(ticket)
            self._changed.notify_all()
            while not self._stopped and self._next() is not ticket:
                self._changed.wait()
            self._waiting.remove(ticket)
            if self._stopped:
                return False
            self._running.append(unit)
            self._changed.notify_all()
            return True

    def _next(self) -> tuple[float, int, Unit] | None:
        """The waiting ticket whose turn it is: the longest unit that fits, if there is a free job."""
        if len(self._running) >= self.jobs:
            return None
        left = self.memory_mib - sum(unit.mib for unit in self._running)
        fitting = [ticket for ticket in self._waiting if ticket[2].mib <= left or not self._running]
        return min(fitting, key=lambda ticket: ticket[:2], default=None)

    def _release(self, unit: Unit) -> None:
        with self._changed:
            self._running.remove(unit)
            self._changed.notify_all()

    def _finished(self, source: str, unit: Unit | None, report: dict[str, object]) -> None:
        returncode, seconds, mib = (
            int(str(report["returncode"])),
            float(str(report["seconds"])),
            int(str(report["mib"])),
        )
        if returncode != 0:
            with self._changed:
                first = self.failure is None and not self._stopped
                if first:
                    command = tuple(map(str, report["command"]))  # type: ignore[call-overload]
                    self.failure = Failure(source, command, returncode, str(report["output"]), mib)
            self.stop()
            return
        measured = Measured(source, seconds, mib, cached=bool(report.get("cached")), unit=unit)
        with self._changed:
            self.measured.append(measured)
        self._on_done(measured)


def remember_costs(folder: Path, tree: Path, measured: Iterable[Measured]) -> None:
    """Write what the units of `tree` took to `folder/units.json`: where the recipes' figures come from."""
    path = folder / "units.json"
    try:
        known: dict[str, Any] = dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        known = {}  # none yet, or damaged: it is only a record
    for unit in measured:
        if Path(unit.source).is_relative_to(tree) and not unit.cached:
            known[str(Path(unit.source).relative_to(tree))] = {"seconds": round(unit.seconds, 1), "mib": unit.mib}
    path.write_text(json.dumps(known, indent=1, sort_keys=True))
