"""`archwright env check`: is an environment still what its lock says, and does it load together?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .condatoolchain import check_conda_prefix
from .contents import Drift, check_contents, drift_error
from .environment import conda_lock_of, locks_in, require_environment
from .errors import ArchwrightError, Exit
from .indexes import Flavour
from .targets import Target
from .together import Together, load_together

__all__ = ["CheckResult", "check_environment"]


@dataclass(frozen=True)
class CheckResult:
    """`together` is None when the libraries were not loaded: not asked for, or files differ."""

    target: str
    path: Path
    drifts: tuple[Drift, ...]
    together: Together | None

    @property
    def exit(self) -> int:
        error = self.error()
        return error.exit if error else Exit.DONE

    def error(self) -> ArchwrightError | None:
        return drift_error(self.drifts, self.target) if self.drifts else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "path": str(self.path),
            "clean": not self.drifts,
            "drifts": [drift.as_dict() for drift in self.drifts],
            "together": self.together.as_dict() if self.together else None,
        }

    def lines(self) -> tuple[str, ...]:
        """What is well, as a person would say it; what is not is the error's to say."""
        if self.drifts:
            return ()
        lines = [f"{self.path}: every package and every file is as locked"]
        if self.together:
            lines.append(f"loaded together: {', '.join(self.together.imported)}")
            if self.together.nccl:
                lines.append(f"NCCL {self.together.nccl}, one library for torch and DeepEP: {self.together.nccl_path}")
            lines += [f"not verified here: {name} {why}" for name, why in self.together.not_verified.items()]
        return tuple(lines)


def check_environment(
    target: Target,
    *,
    python: str | None = None,
    flavour: Flavour = Flavour.PACKAGES,
    imports: bool = True,
    report: Callable[[str], None] = lambda message: None,
) -> CheckResult:
    """Compare the environment of `target` with its locks. Changes nothing.

    Raises AW307 when there is none, AW332 when files are well but the libraries do not load together.
    """
    environment = require_environment(target, python=python, flavour=flavour)
    locks = locks_in(environment.path, target)
    report(f"comparing {environment.path} with envs/{target.name}")
    drifts = check_contents(environment.path, locks, report=report)
    if flavour is Flavour.CONDA:
        drifts += check_conda_prefix(environment.path, conda_lock_of(target))
    together = None
    if imports and not drifts:
        report("loading the runtime's libraries together")
        together = load_together(environment, locks["runtime"])
    return CheckResult(target.name, environment.path, drifts, together)
