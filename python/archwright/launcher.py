"""Compiler launcher: asks the job pool for a turn, runs the compiler, reports what it took.

CMake puts `python -I -S launcher.py` in front of every compile. It must start fast, so it imports little and nothing
of ours. Without ARCHWRIGHT_POOL in the environment it only runs the command.

Protocol, one JSON object a line over a Unix socket: {"source"} -> {"go": true|false}; after a run {"returncode",
"seconds", "mib", "cached", "command", "output"} -> {"go": true|false}, where true means once more.

What a successful compile printed is kept in `<object>.log`: it has the reports of ptxas, also when nothing recompiles.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

#: status of a compile that the pool did not start (another one failed): EX_TEMPFAIL
NOT_STARTED = 75

#: the last words of csrc/aot/worker.py when it remembered its results: what that took says nothing of the work
REMEMBERED = b"worker.py: remembered\n"

#: seconds between two looks at the memory of the process tree
_INTERVAL = 0.2


def main(command: list[str]) -> int:
    address = os.environ.get("ARCHWRIGHT_POOL")
    if not address:
        os.execvp(command[0], command)
    source = command[command.index("-c") + 1] if "-c" in command[:-1] else ""
    try:
        pool = socket.socket(socket.AF_UNIX)
        pool.connect(address)
        lines = pool.makefile("rw", encoding="utf-8")
        _send(lines, {"source": os.path.abspath(source) if source else ""})
    except OSError:
        return NOT_STARTED
    status, output = NOT_STARTED, b""
    while _may_go(lines):
        status, output, report = _run(command, f"{address}-stats-{os.getpid()}")
        if status == 0:
            _keep_output(command, output)
        try:
            _send(lines, report)
        except OSError:
            break  # the build that asked is gone; the object file is good all the same
    sys.stdout.buffer.write(output)
    sys.stdout.flush()
    return 128 - status if status < 0 else status


def _run(command: list[str], stats: str) -> tuple[int, bytes, dict[str, object]]:
    """Status, output and report of the compiler. ccache says in the file `stats` whether it answered (sccache not)."""
    start = time.monotonic()
    child = subprocess.Popen(
        command,
        env={**os.environ, "CCACHE_STATSLOG": stats},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    pages, output = 0, None
    while output is None:
        try:
            output, _ = child.communicate(timeout=_INTERVAL)
        except subprocess.TimeoutExpired:
            pages = max(pages, _tree_pages(child.pid))
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024  # of one process, but never missed
    report: dict[str, object] = {
        "returncode": child.returncode,
        "seconds": time.monotonic() - start,
        "mib": max(largest, pages * resource.getpagesize() >> 20),
        "cached": _answered_by_cache(stats) or output.endswith(REMEMBERED),
        "command": command,
        "output": output.decode("utf-8", "replace")[-200_000:],
    }
    return child.returncode, output, report


def _tree_pages(root: int) -> int:
    """Resident pages of a process and its descendants. Reads only their own files: /proc may hold thousands."""
    pages, pending = 0, [str(root)]
    while pending:
        process = f"/proc/{pending.pop()}"
        try:
            with open(f"{process}/statm", encoding="ascii") as file:
                pages += int(file.read().split()[1])
            for task in os.listdir(f"{process}/task"):
                with open(f"{process}/task/{task}/children", encoding="ascii") as file:
                    pending += file.read().split()
        except (OSError, IndexError):
            continue  # it has ended
    return pages


def _keep_output(command: list[str], output: bytes) -> None:
    if "-c" not in command or "-o" not in command[:-1]:
        return
    path = command[command.index("-o") + 1] + ".log"
    part = f"{path}.{os.getpid()}"
    try:
        with open(part, "wb") as file:
            file.write(output)
        os.replace(part, path)
    except OSError:  # a full disk, say: rather no log than that of another compile
        for name in (part, path):
            try:
                os.unlink(name)
            except OSError:
                pass


def _answered_by_cache(stats: str) -> bool:
    try:
        with open(stats, encoding="utf-8") as file:
            return any(line.strip().endswith("_cache_hit") for line in file)
    except OSError:
        return False


def _may_go(lines: IO[str]) -> bool:
    try:
        return bool(json.loads(lines.readline() or "{}").get("go"))
    except (OSError, ValueError):
        return False


def _send(lines: IO[str], message: dict[str, object]) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main(sys.argv[1:]))
