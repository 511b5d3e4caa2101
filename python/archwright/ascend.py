"""What a build for Ascend needs besides the locked environment: torch_npu's files, and CANN for device code.

CANN is Huawei's own installer and no package: it cannot be locked, so that its exact version and the digest of its
compiler are written into the wheel. No machine with CANN has run this for us: not verified here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cann import Cann, check_cann_floor, find_cann, parse_release
from .components import Component
from .errors import fail
from .process import CommandFailed, run
from .sources import sha256_of
from .targets import Target

if TYPE_CHECKING:
    from .backend import Request
    from .environment import Environment

__all__ = ["ascend_values", "cann_for", "cann_word", "compiler_facts", "require_cann", "toolkit_of"]

#: What needs no CANN, for who has none.
_INSTEAD = (
    "without it: `archwright build {0} engine`, `archwright build {0} --host-only`, `archwright aot {0} --lower-only`"
)


def require_cann(target: Target) -> Cann:
    """The CANN that compiles for `target`. Raises AW334, AW336, AW337 and AW338."""
    found = find_cann()
    fix = f"`archwright doctor {target.name}` says what to install; {_INSTEAD.format(target.name)}"
    if found is None:
        raise fail(
            "AW334",
            found="no CANN on this machine",
            needed=f"CANN {target.cann} or newer",
            why="only CANN has the compiler of Ascend kernels",
            fix=fix,
        )
    if target.cann:
        check_cann_floor(found, target.cann)
    parts = {
        "bisheng": found.bisheng,
        "ld.lld": found.ld_lld,
        "a record with its version": parse_release(found.version),
    }
    if missing := [name for name, part in parts.items() if part is None]:
        raise fail(
            "AW338",
            found=f"CANN at {found.root} without {', '.join(missing)}",
            needed=", ".join(parts),
            why="they compile and link every kernel, and the wheel is named after the release",
            fix=fix,
        )
    return found


def cann_for(component: Component, target: Target) -> Cann | None:
    """The CANN that the wheel of `component` needs; None where only host code is compiled, or sources are lowered."""
    needs = target.is_ascend and component.has_device_code and not component.pack
    return require_cann(target) if needs else None


def cann_word(version: str) -> str:
    """`cann92` of `9.2.0-beta.2`."""
    release = parse_release(version)
    return f"cann{release.major}{release.minor}" if release else "cann"


def toolkit_of(component: Component, target: Target, environment: Environment, cann: Cann | None) -> str:
    """The first word of a wheel's local version: which toolkit made its code.

    `cu132`; for Ascend `cann92` where `cann` compiled device code, `npu213` where all is host code for torch_npu 2.13,
    and `lowered` of a source pack.
    """
    if not target.is_ascend:
        return environment.toolkit_release
    if component.pack:
        return "lowered"
    if cann:
        return cann_word(cann.version)
    return "npu" + "".join((component.torch_npu or environment.torch).split(".")[:2])


def compiler_facts(cann: Cann) -> dict[str, str]:
    """What is written down of a CANN that compiled something. Raises AW338 when its compiler does not run."""
    assert cann.bisheng is not None
    try:
        said = run([cann.bisheng, "--version"])
    except (CommandFailed, OSError) as error:
        raise fail(
            "AW338",
            found=f"{cann.bisheng}: {error}",
            needed="a bisheng that runs here",
            why="it compiles the kernels",
            fix=f"`{cann.bisheng} --version` by hand; is CANN of this processor, and whole?",
        ) from error
    return {
        "version": cann.version,
        "processor": cann.processor,
        "bisheng": said.strip().partition("\n")[0],
        "bisheng_sha256": sha256_of(cann.bisheng),
    }


def ascend_values(request: Request, launcher: list[str]) -> dict[str, object]:
    """What CMake has to know (cmake/ArchwrightAscend.cmake); of CANN nothing where only host files are compiled."""
    values: dict[str, object] = {"ARCHWRIGHT_TORCH_NPU": request.environment.runtime_site / "torch_npu"}
    if cann := request.cann:
        values |= {
            "ARCHWRIGHT_NPU_ARCH": next(iter(request.target.devices)),
            "ARCHWRIGHT_LAUNCHER": launcher,
            "ARCHWRIGHT_BISHENG": cann.bisheng,
            "ARCHWRIGHT_ASC": cann.asc_cmake or "",
            "ARCHWRIGHT_CANN_INCLUDES": list(cann.includes),
            "ARCHWRIGHT_CANN_LIBRARIES": cann.libraries,
        }
    return values
