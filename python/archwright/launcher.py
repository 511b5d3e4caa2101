"""Compiler launcher: asks the job pool for a turn, runs the compiler, reports what it took.

CMake puts `python -I -S launcher.py` in front of every compile. It must start fast, so it imports little and nothing
of ours. Without ARCHWRIGHT_POOL in the environment it only runs the command.

Protocol, one JSON object a line over a Unix socket: {"source"} -> {"go": true|false} -> {"returncode", "seconds",
"mib", "cached", "command", "output"}.
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
        answer = json.loads(lines.readline() or '{"go": false}')
    except (OSError, ValueError):
        answer = {"go": False}
    if not answer["go"]:
        return NOT_STARTED
    # ccache says in a file of our choice whether it answered (sccache does not say)
    stats = f"{address}-stats-{os.getpid()}"
    start = time.monotonic()
    child = subprocess.Popen(
        command,
        env={**os.environ, "CCACHE_STATSLOG": stats},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = child.communicate()
    text = output.decode("utf-8", "replace")
    sys.stdout.write(text)
    sys.stdout.flush()
    report = {
        "returncode": child.returncode,
        "seconds": time.monotonic() - start,
        "mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024,
        "cached": _answered_by_cache(stats),
        "command": command,
        "output": text[-200_000:],
    }
    try:
        _send(lines, report)
    except OSError:
        pass  # the build that asked is gone; the object file is good all the same
    return 128 - child.returncode if child.returncode < 0 else child.returncode


def _answered_by_cache(stats: str) -> bool:
    try:
        with open(stats, encoding="utf-8") as file:
            return any(line.strip().endswith("_cache_hit") for line in file)
    except OSError:
        return False


def _send(lines: IO[str], message: dict[str, object]) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main(sys.argv[1:]))
