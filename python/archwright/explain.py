"""From a failed build to one error: the failing command, its message, and what a death by signal means."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path

from .errors import ArchwrightError, fail
from .pool import Failure, death_signal

__all__ = ["explain_failure"]

_OURS = re.compile(r"^\s*(AW\d{3}): .*\n((?:\s*(?:found|needed|why|fix): .*\n)+)", re.M)
#: What every gate found, below the error of the first.
_FINDINGS = re.compile(r"\n(?:\s*\n)?((?:\s*AW\d{3} .*\n)+)")
_NO_SPACE = re.compile(r"No space left on device", re.I)
_ERROR = re.compile(r"error|undefined reference|cannot find|fatal", re.I)


def explain_failure(
    component: str, failure: Failure | None, command: Sequence[str], status: int, log: Path
) -> ArchwrightError:
    """The error of a component whose build ended with `status`.

    `failure` is the first compile that failed in the pool, if any; otherwise `log` tells what went wrong.
    """
    text = log.read_text(encoding="utf-8", errors="replace")
    if failure is not None:
        return _explain_compile(component, failure, log)
    if ours := _own_error(text):
        return ours
    if _NO_SPACE.search(text):
        return _no_space(component, text)
    return fail(
        "AW501",
        found=f"building {component} ended with status {status}: {shlex.join(command)}",
        needed="every step to succeed",
        why="a step other than a compile failed: configuring, linking or packing",
        fix=f"read the message below; all of it is in {log}",
        detail=_around_errors(text),
    )


def _explain_compile(component: str, failure: Failure, log: Path) -> ArchwrightError:
    text = failure.output
    if _NO_SPACE.search(text):
        return _no_space(component, text)
    number = death_signal(failure.returncode, text)
    if number is not None:
        return _explain_death(failure, number)
    return fail(
        "AW501",
        found=f"compiling {failure.source} of {component} ended with status {failure.returncode}",
        needed="every unit to compile",
        why="the compiler's message is below the command",
        fix=f"correct what it names and run the same command again: finished objects are kept ({log})",
        detail=f"{shlex.join(failure.command)}\n\n{_around_errors(text)}",
    )


def _explain_death(failure: Failure, number: int) -> ArchwrightError:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    found = f"{name} ended the compiler of {failure.source} at {failure.mib} MiB"
    why = "the compiler crashed; that is a fault of the compiler or of the machine, not of the source"
    fix = "run it again with fewer jobs or less memory (`--jobs 1`, `--memory GIB`): finished objects are kept"
    if number == signal.SIGKILL:
        why = "the kernel ends the largest process when memory runs out (see `dmesg`)"
    if failure.retried:
        found += "; it had been killed before, and was retried alone"
        if number == signal.SIGKILL:
            fix = "free memory, or raise the limit of the container: this file needs more; finished objects are kept"
    return fail(
        "AW502",
        found=found,
        needed="the compile to finish",
        why=why,
        fix=fix,
        detail=f"{shlex.join(failure.command)}\n\n{_around_errors(failure.output)}",
    )


def _own_error(text: str) -> ArchwrightError | None:
    match = _OURS.search(text + "\n")
    if match is None:
        return None
    parts = dict(re.findall(r"(found|needed|why|fix): +(.*)", match[2]))
    if len(parts) != 4:
        return None
    findings = _FINDINGS.match(f"{text}\n", match.end() - 1)
    detail = "\n".join(line.strip() for line in findings[1].splitlines()) if findings else ""
    return fail(match[1], **parts, detail=detail)


def _no_space(component: str, text: str) -> ArchwrightError:
    return fail(
        "AW308",
        found=f"the disk filled up while building {component}",
        needed="room for objects and temporary files",
        why="the object that was being written is incomplete and is made again",
        fix="free some space (TMPDIR may be on another disk) and run the same command again",
        detail=_around_errors(text),
    )


def _around_errors(text: str, limit: int = 40) -> str:
    """The lines around the first that look like errors, else the last lines."""
    lines = [line for line in text.splitlines() if "ptxas info" not in line and "bytes stack frame" not in line]
    first = next((i for i, line in enumerate(lines) if _ERROR.search(line)), None)
    chosen = lines[-limit:] if first is None else lines[max(0, first - 2) : first + limit]
    return "\n".join(line.rstrip()[:600] for line in chosen)
