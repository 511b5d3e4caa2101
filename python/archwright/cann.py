"""Finding CANN, Huawei's toolkit for Ascend: the active one, those at their usual places, and what each holds.

The active environment wins (case G2). Layouts, from documents and not from a machine of ours:

    8.x      ascend-toolkit/latest, whose folders are links into ascend-toolkit/<version>; set_env.sh beside `latest`
    9.0 on   cann, a link to cann-<version>; set_env.sh in it

Where the compiler lies changed with releases, and no document says when: every known place is looked at.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from .errors import fail

__all__ = [
    "VARIABLES",
    "Cann",
    "active_cann",
    "cann_at",
    "check_cann_floor",
    "find_cann",
    "guard_facts",
    "owner_of",
    "parse_release",
    "system_wide_record",
    "usual_canns",
    "usual_tops",
]

#: What CANN's set_env.sh exports, in the order in which they are believed.
VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")

#: Where an installation by root lies; one by a user lies in the same folders below ~/Ascend.
_SYSTEM = Path("/usr/local/Ascend")
#: Written by the last installer that ran as root: it may be of another CANN than the active one.
_SYSTEM_RECORD = Path("/etc/Ascend/ascend_cann_install.info")
_RECORD = "ascend_toolkit_install.info"
#: Of CANN, what torch_npu 2.13.0rc1 is linked to, in that order (tests/test_real_ascend.py compares).
_LIBRARIES = (
    *("libhccl.so", "libascendcl.so", "libacl_op_compiler.so", "libge_runner.so", "libgraph.so"),
    "libacl_tdt_channel.so",
)
#: The file by which DeepInfer and FlashMLA know that they run on Ascend: its driver makes it.
_DEVICE = "/dev/davinci_manager"


@dataclass(frozen=True)
class Cann:
    """One installation. `root` is absolute, as it was named; `origin` is what named it.

    `version` is exactly what its record says, such as `9.2.0-beta.2`, and empty without a record. `processor` is the
    record's, else that of the `<arch>-linux` folder; empty without either. Programs are None where they are missing.
    """

    root: Path
    version: str
    processor: str
    origin: str
    record: Path | None
    bisheng: Path | None
    ld_lld: Path | None

    @property
    def host_folder(self) -> Path:
        return self.root / f"{self.processor}-linux"

    @property
    def includes(self) -> tuple[Path, ...]:
        """What FlashMLA's setup.py passes, in the folder of CANN's own processor, and `include`, each once."""
        folders = (self.host_folder / "include", self.host_folder / "asc" / "include", self.root / "include")
        found: dict[Path, Path] = {}
        for folder in folders:
            if folder.is_dir():
                found.setdefault(folder.resolve(), folder)
        return tuple(found.values())

    @property
    def libraries(self) -> Path:
        own = self.host_folder / "lib64"
        return own if own.is_dir() else self.root / "lib64"

    @property
    def asc_cmake(self) -> Path | None:
        """The folder with the CMake package ASC: the value for `ASC_DIR`.

        It has no folder of its name above it in some releases, so that CMAKE_PREFIX_PATH alone does not find it.
        """
        kernels = ("tikcpp/ascendc_kernel_cmake", "compiler/tikcpp/ascendc_kernel_cmake")
        folders = [top / "cmake" for top in (self.libraries, self.root / "lib64")]
        folders += [folder / "ASC" for folder in folders]
        folders += [top / name for top in (self.host_folder, self.root) for name in kernels]
        configs = ("ASCConfig.cmake", "asc-config.cmake")
        return next((folder for folder in folders if any((folder / name).is_file() for name in configs)), None)

    @property
    def set_env(self) -> Path | None:
        """The script that activates it: in its root, and beside it in layout 8.x."""
        scripts = (self.root / "set_env.sh", self.root.parent / "set_env.sh")
        return next((script for script in scripts if script.is_file()), None)

    @property
    def activation(self) -> str:
        """The line for the user's shell that makes it the active one."""
        return f"source {shlex.quote(str(self.set_env))}" if self.set_env else self.naming

    @property
    def naming(self) -> str:
        """The line that names its root: enough to build, not to import torch_npu."""
        return f"export {VARIABLES[0]}={shlex.quote(str(self.root))}"

    @property
    def identity(self) -> Path:
        """Where it really lies: the same for two names of one installation."""
        return _root_of(self.record) if self.record else self.root.resolve()


def cann_at(root: Path, origin: str) -> Cann:
    """What the folder `root` holds of a CANN; nothing of it needs to be there."""
    root = root.absolute()
    record = _record_in(root)
    said = _fields(record) if record else {}
    machine = f"{platform.machine()}-linux"
    folders = sorted((path.name for path in root.glob("*-linux") if path.is_dir()), key=lambda n: (n != machine, n))
    processor = said.get("arch") or (folders[0].removesuffix("-linux") if folders else "")
    return Cann(
        root=root,
        version=said.get("version", ""),
        processor=processor,
        origin=origin,
        record=record,
        bisheng=_program("bisheng", root, processor),
        ld_lld=_program("ld.lld", root, processor),
    )


def active_cann(environment: Mapping[str, str] = os.environ) -> Cann | None:
    """The CANN that the environment names. Raises AW334 when the variable names a folder that is not there."""
    name = next((name for name in VARIABLES if environment.get(name)), None)
    if name is None:
        return None
    root = Path(environment[name])
    if not root.is_dir():
        raise fail(
            "AW334",
            found=f"{name} names {root}, which is not a folder",
            needed="the root of an installed CANN",
            why="the active environment is believed before anything else: another CANN is not taken in its place",
            fix=f"`unset {name}`, then `source <root of CANN>/set_env.sh`",
        )
    return cann_at(root, name)


def usual_tops(home: Path | None = None) -> tuple[Path, ...]:
    """The folders in which installers put a CANN: root's, and the user's below `home` (by default his own)."""
    try:
        return _SYSTEM, (home or Path.home()) / "Ascend"
    except RuntimeError:  # a user without a home
        return (_SYSTEM,)


def usual_canns(home: Path | None = None) -> tuple[Cann, ...]:
    """Those at usual places, newest first, each once however many links lead to it."""
    found: dict[Path, Cann] = {}
    for top in usual_tops(home):
        for path in (top / "cann", *sorted(top.glob("cann-*")), top / "ascend-toolkit" / "latest"):
            cann = cann_at(path, "its usual place")
            if cann.record or cann.bisheng:
                found.setdefault(cann.identity, cann)
    return tuple(sorted(found.values(), key=lambda cann: parse_release(cann.version) or Version("0"), reverse=True))


def find_cann(environment: Mapping[str, str] = os.environ, home: Path | None = None) -> Cann | None:
    """The active CANN, else the only one at a usual place; None when there is none.

    Raises AW334 when a variable names no folder, and AW337 when there are several and none is active.
    """
    active = active_cann(environment)
    if active is not None:
        return active
    found = usual_canns(home)
    if len(found) > 1:
        raise fail(
            "AW337",
            found=f"{len(found)} CANNs, and none is active: "
            + ", ".join(f"{cann.root} ({cann.version or 'no record'})" for cann in found),
            needed="one that is active",
            why="they compile differently, and nothing says which one is meant",
            fix=" or ".join(f"`{cann.activation}`" for cann in found),
        )
    return found[0] if found else None


def guard_facts(floor: Version) -> dict[str, object]:
    """What the import guard of a wheel for Ascend has to know (csrc/guard/_archwright.py, `_check_cann`)."""
    tops = (str(_SYSTEM), "~/Ascend")
    return {
        "release": str(floor),
        "libraries": list(_LIBRARIES),
        "variables": list(VARIABLES),
        "roots": [f"{top}/{name}" for top in tops for name in ("cann", "ascend-toolkit/latest")],
        "device": _DEVICE,
    }


def check_cann_floor(cann: Cann, floor: Version) -> None:
    """Raise AW336 when the CANN is of an older release than `floor`. A pre-release of the floor itself passes."""
    found = parse_release(cann.version)
    if found is None or found >= floor or Version(found.base_version) >= floor:
        return
    older_name = "; CANN 8 calls the chip Ascend910_95: it is A5, Ascend 950, dav-3510 and arch35, and no Ascend 910"
    raise fail(
        "AW336",
        found=f"CANN {cann.version} at {cann.root}",
        needed=f"CANN {floor} or newer",
        why=f"DeepInfer's README asks for it{older_name if found.major < 9 else ''}",
        fix=f"install CANN {floor} beside it, then `source <its root>/set_env.sh` in a new shell",
    )


def parse_release(version: str) -> Version | None:
    """CANN's spelling as a version that can be compared; None when it starts with no number.

    `9.2.0-beta.2`, `8.5.0.RC1` and `8.0.0.alpha002` are pre-releases of PEP 440. Any other suffix (`8.0.T6`,
    `8.0.RC2.alpha003`) counts as one from before all of them.
    """
    number = re.match(r"\d+(\.\d+)*", version)
    if number is None:
        return None
    try:
        return Version(version)
    except InvalidVersion:
        return Version(f"{number[0]}.dev0")


def owner_of(path: Path) -> Path | None:
    """The root (the `identity`) of the CANN in which `path` really lies; None when it lies in none."""
    real = path.resolve()
    record = next((record for folder in (real, *real.parents) if (record := _record_in(folder))), None)
    return _root_of(record) if record else None


def system_wide_record() -> tuple[Path, str, Path] | None:
    """Folder and version (mostly empty) that the system-wide record names, and the record itself."""
    said = _fields(_SYSTEM_RECORD)
    folder = said.get("toolkit_installpath") or said.get("install_path")
    return (Path(folder), said.get("toolkit_version") or said.get("version", ""), _SYSTEM_RECORD) if folder else None


def _record_in(root: Path) -> Path | None:
    """The record of the machine's own processor first: a CANN for two processors has two."""
    own = root / f"{platform.machine()}-linux"
    folders = (own, *sorted(path for path in root.glob("*-linux") if path != own), root)
    return next((path for folder in folders if (path := folder / _RECORD).is_file()), None)


def _root_of(record: Path) -> Path:
    folder = record.resolve().parent
    return folder.parent if folder.name.endswith("-linux") else folder


def _fields(record: Path) -> dict[str, str]:
    """`name=value` lines, names in lower case; nothing when the file cannot be read."""
    try:
        text = record.read_text(errors="replace")
    except OSError:
        return {}
    return {name.lower(): value for name, value in re.findall(r"(?m)^\s*(\w+)\s*=\s*(\S+)", text)}


def _program(name: str, root: Path, processor: str) -> Path | None:
    places = _program_folders(root, processor)
    return next((path for folder in places if os.access(path := folder / name, os.X_OK) and path.is_file()), None)


def _program_folders(root: Path, processor: str) -> Iterator[Path]:
    yield root / "bin"
    for top in (root / f"{processor}-linux", root, root / "compiler", root / "tools"):
        yield top / "ccec_compiler" / "bin"
    yield root / "compiler" / "bin"
    yield root / "tools" / "bisheng_compiler" / "bin"
