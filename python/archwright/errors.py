"""Every error that Archwright raises, with its stable code.

One table, `CATALOGUE`, holds code, title and exit status; `docs/errors/<code>.md` explains each (a test
keeps the two together). An error has four parts: what was *found*, what was *needed*, *why* it matters
and the exact *fix*.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

__all__ = ["CATALOGUE", "ArchwrightError", "ErrorKind", "Exit", "fail"]


class Exit(IntEnum):
    """Exit statuses of the command line; see docs/errors/README.md."""

    DONE = 0
    CHECK_FAILED = 1
    USAGE = 2
    REFUSED = 3
    UNFIT = 4
    BUILD_FAILED = 5
    INTERRUPTED = 130


@dataclass(frozen=True)
class ErrorKind:
    title: str
    exit: Exit


CATALOGUE: dict[str, ErrorKind] = {
    # 1xx: what was asked for
    "AW101": ErrorKind("unknown target", Exit.USAGE),
    "AW102": ErrorKind("architecture refused", Exit.REFUSED),
    "AW103": ErrorKind("unknown component", Exit.USAGE),
    "AW104": ErrorKind("cell refused", Exit.REFUSED),
    "AW105": ErrorKind("cell not built yet", Exit.REFUSED),
    "AW106": ErrorKind("experimental cell needs --experimental", Exit.REFUSED),
    "AW107": ErrorKind("unknown gencode for the target", Exit.USAGE),
    "AW108": ErrorKind("table is not valid", Exit.CHECK_FAILED),
    "AW109": ErrorKind("wrong usage", Exit.USAGE),
    # 2xx: sources
    "AW201": ErrorKind("hash mismatch", Exit.CHECK_FAILED),
    "AW202": ErrorKind("archive is damaged", Exit.CHECK_FAILED),
    "AW203": ErrorKind("archive is hostile", Exit.CHECK_FAILED),
    "AW204": ErrorKind("expected files are missing from the source", Exit.CHECK_FAILED),
    "AW205": ErrorKind("patch does not apply", Exit.CHECK_FAILED),
    "AW206": ErrorKind("package cannot be downloaded", Exit.UNFIT),
    "AW207": ErrorKind("not in the cache, and offline", Exit.UNFIT),
    # 3xx: the machine and its environment
    "AW301": ErrorKind("no suitable Python", Exit.UNFIT),
    "AW302": ErrorKind("wrong Python asked for", Exit.USAGE),
    "AW303": ErrorKind("no suitable C++ compiler", Exit.UNFIT),
    "AW304": ErrorKind("compiler could not be provisioned", Exit.UNFIT),
    "AW305": ErrorKind("nvcc is too old", Exit.UNFIT),
    "AW306": ErrorKind("environment could not be created", Exit.UNFIT),
    "AW307": ErrorKind("environment is missing or incomplete", Exit.UNFIT),
    "AW308": ErrorKind("no space left", Exit.UNFIT),
    "AW309": ErrorKind("not enough memory", Exit.UNFIT),
    "AW310": ErrorKind("operating system is not supported", Exit.UNFIT),
    "AW311": ErrorKind("CUDA releases are mixed", Exit.UNFIT),
    "AW312": ErrorKind("library root is not valid", Exit.UNFIT),
    "AW313": ErrorKind("libdw headers are missing", Exit.UNFIT),
    "AW314": ErrorKind("environment differs from its lock", Exit.CHECK_FAILED),
    "AW315": ErrorKind("environment cannot be solved", Exit.UNFIT),
    "AW316": ErrorKind("not yet locked here", Exit.UNFIT),
    "AW317": ErrorKind("lock is for another platform", Exit.UNFIT),
    "AW318": ErrorKind("virtual package is missing", Exit.UNFIT),
    "AW319": ErrorKind("lock cannot be read", Exit.CHECK_FAILED),
    "AW320": ErrorKind("no conda front end", Exit.UNFIT),
    "AW321": ErrorKind("bundle is damaged or does not fit", Exit.CHECK_FAILED),
    "AW322": ErrorKind("lock is out of date", Exit.CHECK_FAILED),
    "AW323": ErrorKind("GCC is newer than nvcc supports", Exit.UNFIT),
    "AW324": ErrorKind("C library is too old", Exit.UNFIT),
    "AW325": ErrorKind("locale is not UTF-8", Exit.UNFIT),
    "AW326": ErrorKind("folder does not permit programs", Exit.UNFIT),
    "AW327": ErrorKind("home or cache folder cannot be written", Exit.UNFIT),
    "AW328": ErrorKind("proxy settings do not fit together", Exit.UNFIT),
    "AW329": ErrorKind("variables that steer compilers are set", Exit.DONE),
    "AW330": ErrorKind("no compiler cache", Exit.DONE),
    "AW331": ErrorKind("no device", Exit.DONE),
    "AW332": ErrorKind("locked libraries do not load together", Exit.CHECK_FAILED),
    "AW333": ErrorKind("package differs from its lock", Exit.CHECK_FAILED),
    "AW334": ErrorKind("no CANN", Exit.UNFIT),
    "AW335": ErrorKind("CANN is not sourced", Exit.DONE),
    "AW336": ErrorKind("CANN is too old", Exit.UNFIT),
    "AW337": ErrorKind("more than one CANN", Exit.UNFIT),
    "AW338": ErrorKind("CANN is incomplete", Exit.UNFIT),
    "AW339": ErrorKind("CANN is for another processor", Exit.UNFIT),
    "AW340": ErrorKind("torch and torch_npu do not pair", Exit.UNFIT),
    "AW341": ErrorKind("CANN was moved", Exit.DONE),
    # 4xx: wheels
    "AW401": ErrorKind("wheel lacks expected files", Exit.CHECK_FAILED),
    "AW402": ErrorKind("symbol versions above the floor", Exit.CHECK_FAILED),
    "AW403": ErrorKind("RPATH leaves the wheel", Exit.CHECK_FAILED),
    "AW404": ErrorKind("no wheel was produced", Exit.BUILD_FAILED),
    "AW411": ErrorKind("kernels do not cover the target exactly", Exit.CHECK_FAILED),
    "AW412": ErrorKind("PTX in the wheel", Exit.CHECK_FAILED),
    "AW413": ErrorKind("relocatable device code is left", Exit.CHECK_FAILED),
    "AW414": ErrorKind("platform tags disagree", Exit.CHECK_FAILED),
    "AW415": ErrorKind("wheel tells about the build machine", Exit.CHECK_FAILED),
    "AW416": ErrorKind("RECORD is wrong", Exit.CHECK_FAILED),
    "AW417": ErrorKind("wheel above its size budget", Exit.CHECK_FAILED),
    "AW418": ErrorKind("kernels outside their budget", Exit.CHECK_FAILED),
    "AW419": ErrorKind("wheel is hostile", Exit.CHECK_FAILED),
    "AW420": ErrorKind("wheel cannot be read", Exit.CHECK_FAILED),
    "AW421": ErrorKind("two builds differ", Exit.CHECK_FAILED),
    "AW422": ErrorKind("wheel of another toolkit", Exit.CHECK_FAILED),
    "AW423": ErrorKind("disassembler failed", Exit.UNFIT),
    "AW424": ErrorKind("Ascend device code is not what the wheel promises", Exit.CHECK_FAILED),
    # 5xx: builds
    "AW501": ErrorKind("a command failed", Exit.BUILD_FAILED),
    "AW502": ErrorKind("the compiler was killed", Exit.BUILD_FAILED),
    "AW503": ErrorKind("another build holds the cell", Exit.BUILD_FAILED),
    "AW504": ErrorKind("interrupted", Exit.INTERRUPTED),
    # 6xx: raised inside a wheel (import guard, AOT pack), never by the tool
    "AW601": ErrorKind("no NVIDIA driver", Exit.CHECK_FAILED),
    "AW602": ErrorKind("another torch than the wheel was built against", Exit.CHECK_FAILED),
    "AW603": ErrorKind("NCCL is too old", Exit.CHECK_FAILED),
    "AW604": ErrorKind("device is not of the wheel's architecture", Exit.CHECK_FAILED),
    "AW605": ErrorKind("another Python or processor than the wheel's", Exit.CHECK_FAILED),
    "AW606": ErrorKind("AOT pack does not fit", Exit.CHECK_FAILED),
    "AW607": ErrorKind("kernel is not in the AOT pack", Exit.CHECK_FAILED),
    "AW608": ErrorKind("AOT pack is damaged", Exit.CHECK_FAILED),
    "AW609": ErrorKind("neither an AOT pack nor a compiler", Exit.CHECK_FAILED),
    "AW610": ErrorKind("another torch_npu than the wheel was built against", Exit.CHECK_FAILED),
    "AW611": ErrorKind("CANN's libraries cannot be loaded", Exit.CHECK_FAILED),
    "AW612": ErrorKind("no Ascend driver", Exit.CHECK_FAILED),
    # 7xx: the simulated device and AOT packs
    "AW701": ErrorKind("unknown device", Exit.USAGE),
    "AW702": ErrorKind("no C++ compiler for the simulated device", Exit.UNFIT),
    "AW703": ErrorKind("simulated device could not be built", Exit.BUILD_FAILED),
    "AW704": ErrorKind("call outside the simulated device's scope", Exit.BUILD_FAILED),
    "AW705": ErrorKind("evidence above level 1 under a simulated device", Exit.CHECK_FAILED),
    "AW706": ErrorKind("shape file cannot be used", Exit.USAGE),
    "AW708": ErrorKind("library of the AOT pack is missing", Exit.UNFIT),
}


@dataclass
class ArchwrightError(Exception):
    """An error in four parts.

    `code` is a key of `CATALOGUE`; `found`, `needed`, `why` and `fix` are sentences without a final
    newline; `detail` may carry a compiler's own words (several lines).
    """

    code: str
    found: str
    needed: str
    why: str
    fix: str
    detail: str = ""

    def __post_init__(self) -> None:
        super().__init__(self.code, self.found)

    @property
    def title(self) -> str:
        return CATALOGUE[self.code].title

    @property
    def exit(self) -> Exit:
        return CATALOGUE[self.code].exit

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "title": self.title, "exit": int(self.exit)}

    def __str__(self) -> str:
        text = (
            f"{self.code}: {self.title}\n"
            f"  found:  {self.found}\n"
            f"  needed: {self.needed}\n"
            f"  why:    {self.why}\n"
            f"  fix:    {self.fix}"
        )
        return f"{text}\n\n{self.detail.rstrip()}" if self.detail else text


def fail(code: str, *, found: str, needed: str, why: str, fix: str, detail: str = "") -> ArchwrightError:
    """Build an `ArchwrightError`, checking that the code is in the catalogue.

    Raises KeyError for an unknown code, so that a typo cannot reach a user.
    """
    CATALOGUE[code]
    return ArchwrightError(code, found, needed, why, fix, detail)
