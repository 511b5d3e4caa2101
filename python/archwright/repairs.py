"""Repairs: which commands this machine has for them, and running them with the user's consent."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from .findings import Finding, Level, Repair

__all__ = [
    "Outcome",
    "Step",
    "apply_repairs",
    "from_pyenv",
    "from_system",
    "in_shell",
    "repairable",
    "repaired",
    "with_tool",
]

#: Where apt keeps what `apt-get update` fetched.
_APT_LISTS = Path("/var/lib/apt/lists")


class Outcome(StrEnum):
    """What became of a step. PRINTED: it cannot be run for the user, or nobody was there to agree."""

    PRINTED = "printed"
    DONE = "done"
    DECLINED = "declined"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Step:
    """One step of the repair of `check`, and what became of it."""

    check: str
    repair: Repair
    outcome: Outcome
    status: int | None = None

    @property
    def was_run(self) -> bool:
        return self.status is not None

    def as_dict(self) -> dict[str, Any]:
        return {
            "check": self.check,
            **self.repair.as_dict(),
            "outcome": str(self.outcome),
            "status": self.status,
        }


def in_shell(*lines: str) -> tuple[Repair, ...]:
    """Lines for the user's own shell. They name variables, never their values: a proxy's may hold a password."""
    return tuple(Repair(shell=line) for line in lines)


def with_tool(*words: str) -> tuple[Repair, ...]:
    """A command of this tool itself."""
    script = Path(sys.executable).with_name("archwright")
    start = (str(script),) if script.is_file() else (sys.executable, "-m", "archwright")
    return (Repair((*start, *words)),)


def from_pyenv(version: str) -> tuple[Repair, ...]:
    """pyenv's newest Python of `version`, where there is pyenv."""
    return (Repair(("pyenv", "install", "--skip-existing", version)),) if shutil.which("pyenv") else ()


def from_system(*choices: tuple[str, ...]) -> tuple[Repair, ...]:
    """Installing the first of `choices` (each a set of Debian packages) that apt knows; nothing where none is known.

    Without package lists apt knows nothing yet: then the first choice, after an update.
    """
    if shutil.which("apt-get") is None:
        return ()
    apt = ("apt-get", "install", "-y")
    if not any(_APT_LISTS.glob("*_Packages*")):
        return (Repair(("apt-get", "update"), needs_root=True), Repair((*apt, *choices[0]), needs_root=True))
    known = next((names for names in choices if all(map(_apt_knows, names))), None)
    return (Repair((*apt, *known), needs_root=True),) if known else ()


def _apt_knows(package: str) -> bool:
    try:
        command = ["apt-cache", "show", "--no-all-versions", package]
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.returncode == 0 and "Package:" in answer.stdout


def repairable(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that are not as they should be and have a repair on this machine."""
    return tuple(f for f in findings if f.level is not Level.OK and f.repairs)


def apply_repairs(
    findings: Iterable[Finding],
    agrees: Callable[[Finding, Repair], bool] | None,
    *,
    quiet: bool = False,
) -> tuple[Step, ...]:
    """Run the repairs of `findings` in order, each only when the user agrees; with None nothing is run.

    After a step that failed or was declined the rest of that finding is left out. `quiet` sends what the commands print
    to standard error, so that standard output stays JSON.
    """
    steps: list[Step] = []
    for finding in repairable(findings):
        blocked = False
        for repair in finding.repairs:
            before = next((s for s in steps if s.repair == repair), None)
            if before is not None and before.outcome is Outcome.PRINTED:
                continue
            if before is not None:  # two findings with one cause
                outcome, status = before.outcome, before.status
            elif not repair.can_run or agrees is None:
                outcome, status = Outcome.PRINTED, None
            elif blocked:
                outcome, status = Outcome.SKIPPED, None
            elif not agrees(finding, repair):
                outcome, status = Outcome.DECLINED, None
            else:
                print(f"$ {repair}", file=sys.stderr, flush=True)
                status = _run(repair.command, quiet)
                outcome = Outcome.FAILED if status else Outcome.DONE
            blocked = blocked or outcome in (Outcome.FAILED, Outcome.DECLINED)
            steps.append(Step(finding.check, repair, outcome, status))
    return tuple(steps)


def repaired(before: Iterable[Finding], after: Iterable[Finding]) -> tuple[str, ...]:
    """The checks that were not as they should be, and now are."""
    left = {finding.check for finding in after if finding.level is not Level.OK}
    return tuple(dict.fromkeys(f.check for f in before if f.level is not Level.OK and f.check not in left))


def _run(command: tuple[str, ...], quiet: bool) -> int:
    sys.stdout.flush()
    try:
        # in the user's own environment, as if he had typed it; without input, so that nothing waits for an answer
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=2 if quiet else None, check=False).returncode
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 127
