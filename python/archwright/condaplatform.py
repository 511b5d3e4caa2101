"""What conda calls this machine: its platform (`linux-64`) and its virtual packages (`__glibc`, `__cuda` and others).

$CONDA_SUBDIR and $CONDA_OVERRIDE_<NAME> change the answer as they do for conda; an empty override means *not there*.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Mapping

from .errors import fail

__all__ = ["check_machine", "current_platform", "native_platform", "satisfied", "virtual_packages"]

#: conda's names for the processors that we build on.
_PLATFORMS = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}


def native_platform() -> str:
    """This machine in conda's words; a machine that we do not build on keeps its own name."""
    return _PLATFORMS.get(platform.machine(), f"linux-{platform.machine()}")


def current_platform(environ: Mapping[str, str] = os.environ) -> str:
    """The platform to solve or install for: $CONDA_SUBDIR, else this machine's."""
    return environ.get("CONDA_SUBDIR") or native_platform()


def virtual_packages(subdir: str, environ: Mapping[str, str] = os.environ) -> tuple[tuple[str, str, str], ...]:
    """(name, version, build) of each virtual package, sorted.

    An override wins over what is detected, also for names that nobody detects. For another machine's platform only
    overrides count, besides `__unix` and `__linux`, which every Linux has.
    """
    found = _detected() if subdir == native_platform() else {"__unix": ("0", "0"), "__linux": ("0", "0")}
    for variable, value in environ.items():
        if not variable.startswith("CONDA_OVERRIDE_"):
            continue
        name = "__" + variable.removeprefix("CONDA_OVERRIDE_").lower()
        if not value.strip():
            # conda-lock empties all of them before it sets those of its specification
            found.pop(name, None)
        elif name == "__archspec":
            found[name] = ("1", value.strip())
        else:
            version, _, build = value.strip().partition("=")
            found[name] = (version, build or "0")
    return tuple(sorted((name, version, build) for name, (version, build) in found.items()))


def _detected() -> dict[str, tuple[str, str]]:
    from rattler import VirtualPackage

    generic = [package.into_generic() for package in VirtualPackage.detect()]
    return {g.name.normalized: (str(g.version), str(g.build_string)) for g in generic}


def satisfied(name: str, constraint: str, packages: tuple[tuple[str, str, str], ...]) -> bool:
    """Whether one of `packages` fulfils `constraint` (a version, perhaps with a build) on `name`."""
    from rattler import MatchSpec, PackageRecord
    from rattler.package import BuildString

    spec = MatchSpec(f"{name} {constraint}".strip())
    return any(
        spec.matches(PackageRecord(name, version, BuildString(build), 0, "noarch"))
        for found, version, build in packages
        if found == name
    )


def check_machine(
    needs: Iterable[tuple[str, str, str]], platform: str, report: Callable[[str], None] = lambda message: None
) -> None:
    """Raise AW318 unless this machine has the virtual packages that `needs` (who, name, constraint) ask for.

    A build machine need not have a GPU: without `__cuda`, or with an older driver, only running is impossible. That is
    a note, unless $CONDA_OVERRIDE_CUDA says what the machine has.
    """
    there = virtual_packages(platform)
    stated = bool(os.environ.get("CONDA_OVERRIDE_CUDA", "").strip())
    noted = False
    for who, name, constraint in needs:
        if not name.startswith("__") or satisfied(name, constraint, there):
            continue
        has = next((version for found, version, _ in there if found == name), None)
        if name == "__cuda" and not stated:
            if not noted:
                found = f"a driver for CUDA {has}" if has else "no NVIDIA driver"
                report(f"{found}: {who} asks for __cuda {constraint}, to run; building works without")
            noted = True
            continue
        raise fail(
            "AW318",
            found=f"{name} {has}" if has else f"no {name}",
            needed=f"{name} {constraint}, which {who} asks for",
            why="the lock was solved for a machine that has it; its packages would not run here",
            fix="use a machine (or a container) that has it; or lock for what this one has, in virtual-packages.yml",
        )
