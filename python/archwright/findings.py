"""What a check of the machine says, and the steps that would repair it: plain data."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .errors import ArchwrightError

__all__ = ["Finding", "Level", "Repair", "from_error", "is_fit"]


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    FAIL = "fail"


@dataclass(frozen=True)
class Repair:
    """One step of a repair.

    `command` is a program and its words, run without a shell. `shell` is a line for the user's own shell, such as an
    `export`: nothing that we start could change that for him, so it is only ever printed.
    """

    command: tuple[str, ...] = ()
    shell: str = ""
    needs_root: bool = False

    @property
    def can_run(self) -> bool:
        return bool(self.command) and (not self.needs_root or os.geteuid() == 0)

    def __str__(self) -> str:
        """The exact line to type."""
        sudo = ("sudo",) if self.needs_root and os.geteuid() != 0 else ()
        return self.shell or shlex.join((*sudo, *self.command))

    def as_dict(self) -> dict[str, Any]:
        return {
            "line": str(self),
            "command": list(self.command),
            "needs_root": self.needs_root,
            "can_run": self.can_run,
        }


@dataclass(frozen=True)
class Finding:
    """One check's result. `code` is that of the page which explains the check, also when all is well."""

    check: str
    level: Level
    found: str
    needed: str = ""
    why: str = ""
    fix: str = ""
    code: str = ""
    repairs: tuple[Repair, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        texts = {name: getattr(self, name) for name in ("found", "needed", "why", "fix", "code")}
        page = f"docs/errors/{self.code}.md" if self.code else ""
        repairs = [repair.as_dict() for repair in self.repairs]
        return {"check": self.check, "level": str(self.level), **texts, "page": page, "repairs": repairs}


def is_fit(findings: Iterable[Finding]) -> bool:
    return all(finding.level is not Level.FAIL for finding in findings)


def from_error(check: str, error: ArchwrightError, repairs: tuple[Repair, ...] = ()) -> Finding:
    """The error that a build would end with, as a finding."""
    return Finding(check, Level.FAIL, error.found, error.needed, error.why, error.fix, error.code, repairs)
