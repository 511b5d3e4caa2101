"""One job pool over all components: memory first, longest unit first.

Each component's Ninja starts all of its compiles at once; every compile waits in `launcher.py` for its turn here. So
one place sees all units of all components and decides which may run: the longest, if the memory that is left holds it;
until then only such as do not delay it. It measures what each took, runs one that was killed for memory once more
alone, and keeps the output of the first that failed.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .components import Unit

__all__ = ["Failure", "Measured", "Pool", "death_signal"]

#: What is assumed of a unit that no recipe names: a precompiled header, CMake's own checks.
_UNKNOWN = Unit("", seconds=30, mib=2300)

#: nvcc's words (with the number), GCC's (new and old) and the shell's.
_KILLED = re.compile(
    r"(?:died due to|terminated by) signal (\d+)|Killed signal terminated|internal compiler error: Killed \(program "
    r"|^(?:.*:\s+\d+\s+)?Killed\b",
    re.M,
)


@dataclass(frozen=True)
class Measured:
    """One finished compile: source, wall seconds, and peak memory of its process tree in MiB.

    `unit` is what the plan knew of it; None for what no recipe names (a precompiled header).
    """

    source: str
    seconds: float
    mib: int
    cached: bool
    unit: Unit | None = None


@dataclass(frozen=True)
class Failure:
    """The first compile that failed. `returncode` is negative for a death by signal.

    `retried` says that it was killed for memory before, and then failed while it ran alone.
    """

    source: str
    command: tuple[str, ...]
    returncode: int
    output: str
    mib: int
    retried: bool = False


def death_signal(returncode: int, output: str) -> int | None:
    """The signal that ended a compiler or, by the words of its driver, a part of it; None when it ended by itself."""
    if returncode < 0:
        return -returncode
    if returncode > 128 and returncode - 128 in set(signal.Signals):
        return returncode - 128
    match = _KILLED.search(output) if returncode else None
    return int(match[1] or signal.SIGKILL) if match else None


@dataclass(eq=False)
class _Ticket:
    """A compile that waits or runs. `known` is its unit as planned, `alone` marks the second attempt."""

    source: str
    known: Unit | None
    turn: int
    alone: bool = False
    started: float = 0.0

    @property
    def unit(self) -> Unit:
        return self.known or Unit(self.source, _UNKNOWN.seconds, _UNKNOWN.mib)

    @property
    def order(self) -> tuple[bool, float, int]:
        """Second attempts first, then what no recipe names (others wait for a precompiled header), then the longest."""
        return (not self.alone, -self.known.seconds if self.known else -math.inf, self.turn)

    @property
    def end(self) -> float:
        return self.started + self.unit.seconds


class Pool:
    """A scheduler that listens on a Unix socket (`address`) while it is entered as a context manager.

    `costs` maps absolute source paths to units; `jobs` bounds how many run at once and `memory_mib` the sum of their
    expected peaks. A unit larger than the whole budget runs alone. `on_done` is called after each compile, `on_news`
    when one failed or runs again. `retried` names the units that were killed for memory and ran again, alone.
    """

    def __init__(
        self,
        jobs: int,
        memory_mib: int,
        costs: Mapping[str, Unit],
        on_done: Callable[[Measured], None] = lambda measured: None,
        on_news: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.jobs = jobs
        self.memory_mib = memory_mib
        self.costs = costs
        self.failure: Failure | None = None
        self.measured: list[Measured] = []
        self.retried: list[str] = []
        self._on_done = on_done
        self._on_news = on_news
        self._changed = threading.Condition()
        self._waiting: list[_Ticket] = []
        self._running: list[_Ticket] = []
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
            return tuple(ticket.unit.path for ticket in self._running)

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
                ticket, again = self._enqueue(json.loads(lines.readline())["source"]), True
                while again and self._wait_for_turn(ticket):
                    again = False
                    try:
                        _answer(lines, go=True)
                        again = self._finished(ticket, json.loads(lines.readline()))
                    finally:
                        self._release(ticket, again)
                _answer(lines, go=False)
        except (OSError, ValueError, KeyError):
            return  # the launcher was killed, while it waited or with its compiler; its turn is given back

    def _enqueue(self, source: str) -> _Ticket:
        with self._changed:
            self._turn += 1
            ticket = _Ticket(source, self.costs.get(source), self._turn)
            self._waiting.append(ticket)
            self._changed.notify_all()
            return ticket

    def _wait_for_turn(self, ticket: _Ticket) -> bool:
        with self._changed:
            while not self._stopped and self._next() is not ticket:
                self._changed.wait()
            self._waiting.remove(ticket)
            if self._stopped:
                return False
            ticket.started = time.monotonic()
            self._running.append(ticket)
            self._changed.notify_all()
            return True

    def _next(self) -> _Ticket | None:
        """The waiting ticket whose turn it is, if there is a free job: the first in order.

        While that one has no room, another may go if it fits and does not delay it: it is expected to end before
        there is room, or there is room for both then. So a large unit never starves behind small ones. (Batch systems
        call this backfilling.) Expected ends that have passed make nobody early, so wrong figures cannot starve it
        either.
        """
        if len(self._running) >= self.jobs or not self._waiting:
            return None
        first = min(self._waiting, key=lambda ticket: ticket.order)
        if self._fits(first):
            return first
        if first.alone:
            return None
        start, spare = self._reservation(first)
        now = time.monotonic()
        harmless = [
            ticket
            for ticket in self._waiting
            if self._fits(ticket) and (now + ticket.unit.seconds <= start or ticket.unit.mib <= spare)
        ]
        return min(harmless, key=lambda ticket: ticket.order, default=None)

    def _fits(self, ticket: _Ticket) -> bool:
        if not self._running:
            return True
        if ticket.alone or any(running.alone for running in self._running):
            return False
        return ticket.unit.mib <= self.memory_mib - sum(running.unit.mib for running in self._running)

    def _reservation(self, first: _Ticket) -> tuple[float, int]:
        """When enough of what runs should have ended for `first`, and the memory that is left beside it then."""
        spare = self.memory_mib - sum(running.unit.mib for running in self._running) - first.unit.mib
        start = time.monotonic()
        for running in sorted(self._running, key=lambda running: running.end):
            if spare >= 0:
                break
            start = running.end
            spare += running.unit.mib
        return start, spare

    def _release(self, ticket: _Ticket, again: bool) -> None:
        with self._changed:
            self._running.remove(ticket)
            if again:
                ticket.alone = True
                self._waiting.append(ticket)
            self._changed.notify_all()

    def _finished(self, ticket: _Ticket, report: dict[str, object]) -> bool:
        """Note what a compile took, or that it failed. True when it was killed for memory and is to run again."""
        returncode, output = int(str(report["returncode"])), str(report["output"])
        seconds, mib = float(str(report["seconds"])), int(str(report["mib"]))
        if returncode == 0:
            measured = Measured(ticket.source, seconds, mib, cached=bool(report.get("cached")), unit=ticket.known)
            with self._changed:
                self.measured.append(measured)
            self._on_done(measured)
            return False
        with self._changed:
            again = death_signal(returncode, output) == signal.SIGKILL and not ticket.alone and not self._stopped
            first = self.failure is None and not self._stopped and not again
            if again:
                self.retried.append(ticket.unit.path)
            if first:
                command = tuple(map(str, report["command"]))  # type: ignore[call-overload]
                self.failure = Failure(ticket.source, command, returncode, output, mib, retried=ticket.alone)
            others = len(self._running) - 1
        name = Path(ticket.source).name
        if again:
            self._on_news(f"{name} was killed at {mib} MiB: memory ran out; it runs once more, alone")
            return True
        self.stop()
        if first:
            compiles = "1 running compile" if others == 1 else f"{others} running compiles"
            self._on_news(f"{name} failed" + (f"; letting the {compiles} finish" if others else ""))
        return False


def _answer(lines: IO[str], *, go: bool) -> None:
    lines.write(json.dumps({"go": go}) + "\n")
    lines.flush()
