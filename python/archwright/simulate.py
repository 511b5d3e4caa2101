"""Running programs under the simulated device: stand-ins for the CUDA runtime and driver, built once and preloaded."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .devices import Device, find_device
from .errors import ArchwrightError, fail
from .process import CommandFailed, run
from .project import cache_dir, project_root, write_errors

if TYPE_CHECKING:
    from .environment import Environment

__all__ = ["Simulation", "build_stand_ins", "refusal_in", "run_simulated", "simulation", "summary"]

#: In the order in which they are preloaded.
_LIBRARIES = ("libcudart.so.13", "libcuda.so.1", "libcublas_stand_in.so", "libnvidia-ml.so.1")
#: Preloaded only for a program that is one rank of a group: torch's own NCCL serves a program alone.
_NCCL = "libnccl.so.2"
#: What the stand-ins say of themselves: a driver of the locked toolchain's release, the runtime that torch has.
_RUNTIME_VERSION = 13000


def build_stand_ins(environment: Environment) -> Path:
    """The folder with the stand-in libraries, built when there is none for these sources and this compiler.

    Raises AW702 without a compiler and AW703 when they cannot be built; nothing half-made is left.
    """
    source = project_root() / "csrc" / "simdevice"
    if not environment.cxx.is_file():
        raise fail(
            "AW702",
            found=f"no {environment.cxx}",
            needed="the environment's C++ compiler",
            why="the simulated device is built on the machine where it runs",
            fix=f"`archwright env create {environment.target}`",
        )
    text = b"".join(path.read_bytes() for path in sorted(source.iterdir()) if path.is_file())
    made_with = environment.compilers.read_bytes() + environment.nccl.encode()
    digest = hashlib.sha256(text + made_with).hexdigest()[:16]
    place = cache_dir() / "simdevice" / digest
    if place.is_dir():
        return place
    with write_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".staged-", dir=place.parent) as staging:
            staged = Path(staging) / "lib"
            _compile(source, Path(staging) / "build", environment)
            staged.mkdir()
            for name in (*_LIBRARIES, _NCCL):
                shutil.copy(Path(staging) / "build" / name, staged / name)
            try:
                staged.rename(place)
            except OSError:
                if not place.is_dir():  # otherwise another process was faster, with the same result
                    raise
    return place


def _compile(source: Path, build: Path, environment: Environment) -> None:
    tools = environment.toolchain / "bin"
    configure: list[str | Path] = [
        *(tools / "cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"),
        *(f"-DCMAKE_C_COMPILER={environment.cc}", f"-DCMAKE_CXX_COMPILER={environment.cxx}"),
        *("-DCMAKE_BUILD_TYPE=Release", f"-DSIMDEVICE_CUDA_INCLUDE={environment.toolkit / 'include'}"),
        f"-DSIMDEVICE_NCCL_INCLUDE={environment.nccl_root / 'include'}",
    ]
    try:
        run(configure)
        run([tools / "cmake", "--build", build])
    except CommandFailed as error:
        raise fail(
            "AW703",
            found=str(error),
            needed="the stand-ins to compile",
            why="nothing can run under the simulated device without them",
            fix="read the compiler's message below",
            detail=error.output,
        ) from error


def simulation(
    name: str, environment: Environment, log: Path | None = None, count: int = 1, *, nccl: bool = False
) -> dict[str, str]:
    """The variables under which a program sees `count` devices `name`; `log` is a folder for its records.

    With `nccl` it is one rank of a group whose other ranks do not exist (csrc/simdevice/nccl.cpp).
    """
    device: Device = find_device(name)
    if device.is_npu:
        raise fail(
            "AW701",
            found=f"device {device.name}, an NPU",
            needed="a CUDA device",
            why="only CUDA's runtime and driver have a stand-in; for NPUs kernels are lowered",
            fix="`archwright aot ascend950`",
        )
    place = build_stand_ins(environment)
    major, minor, *_ = environment.nvcc.split(".")
    versions = f",driver_version={int(major) * 1000 + int(minor) * 10},runtime_version={_RUNTIME_VERSION}"
    variables = {
        "ARCHWRIGHT_SIMULATED_DEVICE": device.name,
        "ARCHWRIGHT_SIMULATED_TITLE": device.title,
        "ARCHWRIGHT_SIMULATED_DEVICE_COUNT": str(count),
        "ARCHWRIGHT_SIMULATED_FIGURES": device.as_text() + versions,
        "LD_PRELOAD": " ".join(str(place / library) for library in (*_LIBRARIES, *([_NCCL] if nccl else []))),
        "TRITON_LIBCUDA_PATH": str(place),  # it would ask the system's linker cache, which does not have the driver
    }
    return variables | ({"ARCHWRIGHT_SIMULATION_LOG": str(log)} if log else {})


@dataclass(frozen=True)
class Simulation:
    """What a program did: its exit status (negative for a signal) and counts of its records."""

    device: str
    status: int
    launches: int
    loads: int
    kernels: tuple[str, ...]
    refused: tuple[str, ...]
    not_verified: str = (
        "nothing was computed: no result under a simulated device shows that a kernel is correct or fast"
    )

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def run_simulated(name: str, environment: Environment, command: Sequence[str], log: Path, count: int = 1) -> Simulation:
    """Run `command` under `count` devices `name`, with its records in the folder `log`.

    Raises AW704 when it ended because it called something outside the device's scope.
    """
    with write_errors(log):
        log.mkdir(parents=True, exist_ok=True)
    before = {path: path.stat().st_size for path in log.glob("*.jsonl")}
    variables = os.environ | simulation(name, environment, log, count)
    status = subprocess.run(command, env=variables, check=False).returncode
    result = summary(name, status, _records(log, before))
    if status != 0 and (error := refusal_in(result)):
        raise error
    return result


def summary(device: str, status: int, records: Sequence[dict[str, Any]]) -> Simulation:
    """Counts of what the records say."""
    events = Counter(record["event"] for record in records)
    launched = [record for record in records if record["event"] == "launch"]
    kernels = {record["kernel"] for record in launched if not record.get("registered")}  # not torch's own
    refused = {record["function"] for record in records if record["event"] == "refused"}
    return Simulation(device, status, events["launch"], events["load"], tuple(sorted(kernels)), tuple(sorted(refused)))


def refusal_in(result: Simulation) -> ArchwrightError | None:
    if not result.refused:
        return None
    return fail(
        "AW704",
        found=", ".join(result.refused),
        needed="functions that the simulated device implements",
        why="a made-up result would be silently wrong, so the program was ended there",
        fix="run it on a real device, or report which program needs it",
    )


def _records(log: Path, before: dict[Path, int]) -> list[dict[str, Any]]:
    """The lines written since `before` (sizes by path); the last one of a killed process may be cut off."""
    result = []
    for path in sorted(log.glob("*.jsonl")):
        with path.open(encoding="utf-8", errors="replace") as file:
            file.seek(before.get(path, 0))
            for line in file:
                try:
                    result.append(json.loads(line))
                except ValueError:
                    continue
    return result
