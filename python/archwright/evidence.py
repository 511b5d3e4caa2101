"""Evidence: what one wheel was shown to do on one machine, kept beside the wheels that it is about.

Level 1 (*compiles*: built and passed inspection) is written here by `archwright build`; levels 2 and 3 need the device.
What is claimed for a target follows from these records, and only as long as the wheel is the one they are about.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import __version__
from .components import Cell
from .errors import fail
from .project import replace_text, write_errors

__all__ = ["Evidence", "evidence_path", "read_evidence", "write_evidence"]


@dataclass(frozen=True)
class Evidence:
    """One record. `gates` are the codes that passed; `machine` says what it was, not which one (no names).

    `freeze` is the digest of the freeze record: everything that the result depends on.
    """

    level: int
    claim: str
    wheel: str
    sha256: str
    component: str
    target: str
    tier: str
    arches: tuple[str, ...]
    gates: tuple[str, ...]
    toolchain: dict[str, Any]
    machine: dict[str, Any]
    date: str
    archwright: str
    not_verified: tuple[str, ...]
    freeze: str

    def is_about(self, cell: Cell) -> bool:
        where = (self.component, self.target, self.machine.get("processor"))
        return where == (cell.component, cell.target, cell.processor)

    def as_dict(self) -> dict[str, Any]:
        return {"schema": 2, **asdict(self)}


def evidence_path(wheel: Path, level: int) -> Path:
    return wheel.parent / "evidence" / f"{wheel.name}.level{level}.json"


def write_evidence(
    wheel: Path,
    report: dict[str, Any],
    toolchain: dict[str, Any],
    freeze: str,
    level: int = 1,
    claim: str = "compiles",
) -> Path:
    """Record that `wheel` passed: `report` is the inspection of it as a mapping, `toolchain` what it was built with.

    `freeze` is the digest of the freeze record of the environment that it was built in.
    Raises AW705 for a level above 1 under a simulated device, and ValueError for an inspection that failed: there is
    no evidence of a failure.
    """
    if level > 1 and os.environ.get("ARCHWRIGHT_SIMULATED_DEVICE"):
        raise fail(
            "AW705",
            found=f"evidence of level {level} under the simulated device {os.environ['ARCHWRIGHT_SIMULATED_DEVICE']}",
            needed="a real device",
            why="nothing is computed there: it cannot show that a kernel is correct or fast",
            fix="run it on a machine with the device",
        )
    if report["verdict"] == "failed" or Path(report["wheel"]).name != wheel.name:
        raise ValueError(f"{wheel.name} has not passed inspection")
    evidence = Evidence(
        level=level,
        claim=claim,
        wheel=wheel.name,
        sha256=report["sha256"],
        component=report["component"],
        target=report["target"],
        tier=report["tier"],
        arches=tuple(report["arches"]),
        gates=tuple(finding["code"] for finding in report["findings"] if finding["passed"]),
        toolchain=toolchain,
        machine={
            "system": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
            "kernel": platform.release(),
            "processor": platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
        },
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        archwright=__version__,
        not_verified=tuple(report["not_verified"]),
        freeze=freeze,
    )
    path = evidence_path(wheel, level)
    with write_errors(path):
        path.parent.mkdir(exist_ok=True)
        replace_text(path, json.dumps(evidence.as_dict(), indent=1) + "\n")
    return path


def read_evidence(folder: Path) -> Iterator[Evidence]:
    """The records under `folder` whose wheel is still there and still the same file (case F4); others are ignored."""
    from .sources import sha256_of  # brings the archive readers with it

    for path in sorted(folder.glob("evidence/*.level*.json")):
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            del data["schema"]
            values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
            evidence = Evidence(**values)
            wheel = folder / Path(evidence.wheel).name
            if wheel.is_file() and sha256_of(wheel) == evidence.sha256:
                yield evidence
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue  # damaged: it shows nothing
