"""Compares the first call of an operation with run-time compilation and with an AOT pack, in the same run.

    ./bootstrap python benchmarks/cold_start.py deep_gemm_aot --operations tf32_hc_prenorm_gemm fp8_einsum

Each side is a new process with an empty JIT cache: one with the environment's nvcc and no pack, one with the pack alone
(ARCHWRIGHT_JIT=strict, nothing on PATH). Both call the operation's first case, or with --all-cases all of them. There
is no GPU: both run under the simulated device, so a call is upstream's host code, the compiler where there is one, and
loading the kernel; no kernel computes anything. Timings never make it fail; a side that fails does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

from archwright.components import Component, components, find_component
from archwright.environment import Environment, require_environment
from archwright.manifests import Manifest, is_pack, read_manifest
from archwright.packs import DEFAULT_SHAPES, library_wheels
from archwright.project import project_root, wheels_folder
from archwright.shapes import load_shapes
from archwright.simulate import simulation
from archwright.targets import Target, target_table

NO_GPU = "no GPU: both sides under the simulated device, where kernels are loaded and compute nothing"


@dataclass(frozen=True)
class Setting:
    """What both sides have in common. `library` is the folder of what the cases call."""

    component: Component
    manifest: Manifest
    environment: Environment
    work: Path
    library: Path
    shapes: str
    which: str


@dataclass(frozen=True)
class Side:
    """One process: seconds of all calls and of the whole process, and entries that it put into its empty cache."""

    calls: float
    process: float
    cases: int
    entries: int


@dataclass(frozen=True)
class Row:
    operation: str
    compiling: tuple[Side, ...]
    pack: tuple[Side, ...]

    def median(self, side: str, figure: str = "calls") -> float:
        return float(statistics.median(getattr(taken, figure) for taken in getattr(self, side)))

    @property
    def ratio(self) -> float | None:
        """None where upstream compiles nothing, so that there is nothing to compare."""
        return self.median("compiling") / self.median("pack") if self.compiling[0].entries else None


def main() -> int:
    options = _options()
    component = find_component(options.component)
    if component.pack is None:
        raise SystemExit(f"{component.name} is no AOT pack")
    target = target_table().find(options.target)
    wheel = options.pack or _only_pack(component, target.name)
    manifest = read_manifest(wheel)
    names = options.operations or [operation.name for operation in manifest.operations]
    if unknown := set(names) - {operation.name for operation in manifest.operations}:
        raise SystemExit(f"{wheel.name} has no {', '.join(sorted(unknown))}")
    environment = require_environment(target)
    with tempfile.TemporaryDirectory(prefix="archwright-cold-") as folder:
        work = Path(folder)
        setting = Setting(
            component=component,
            manifest=manifest,
            environment=environment,
            work=work,
            library=_library(component, target, environment, work),
            shapes=options.shapes,
            which="all" if options.all_cases else "first",
        )
        _unpack(wheel, work / "pack")
        print(f"{wheel.name}, {manifest.device}\n{NO_GPU}")
        if os.getloadavg()[0] > 0.3:
            print(f"warning: the machine is busy (load {os.getloadavg()[0]:.1f}): all seconds will be too high")
        print(f"{'operation':40} cases compiled {'calls':>12} {'with pack':>10} {'ratio':>9}   whole processes")
        _run(setting, "pack", names[0])  # reads Python, torch and the library from the disk once
        rows = [_measure(setting, name, options.runs) for name in names]
    _show_summary(rows)
    if options.json:
        facts = {"pack": wheel.name, "sha256": manifest.sha256, "device": manifest.device, "model": manifest.model}
        facts |= {"cases": setting.which, "not_verified": NO_GPU, "cores": os.cpu_count(), "load": os.getloadavg()[0]}
        text = json.dumps(facts | {"rows": [asdict(row) | {"ratio": row.ratio} for row in rows]}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("component", nargs="?", default="deep_gemm_aot", help="a pack's component (deep_gemm_aot)")
    parser.add_argument("--target", default="sm100")
    parser.add_argument("--pack", type=Path, metavar="WHEEL", help="default: the one in dist/<target>")
    parser.add_argument("--operations", nargs="+", metavar="NAME", help="default: all of the pack")
    parser.add_argument("--shapes", default=DEFAULT_SHAPES, help="the shape file that the pack was made for")
    parser.add_argument("--all-cases", action="store_true", help="every case of an operation, not only the first")
    parser.add_argument("--runs", type=int, default=1, help="runs of each side, in turns")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    return parser.parse_args()


def _only_pack(component: Component, target: str) -> Path:
    found = sorted(
        path
        for path in wheels_folder(target).glob(f"{component.distribution.replace('-', '_')}-*.whl")
        if is_pack(path)
    )
    if len(found) != 1:
        raise SystemExit(f"{len(found)} packs of {component.name} in dist/{target}: name one with --pack")
    return found[0]


def _library(component: Component, target: Target, environment: Environment, work: Path) -> Path:
    """The library as it was built here."""
    assert component.pack is not None
    library = components()[component.pack.library]
    wheels = library_wheels(library, target, environment)
    if not wheels:
        raise SystemExit(
            f"no wheel of {library.name} in dist/{target.name}: `archwright build {target.name} {library.name}`"
        )
    return _unpack(wheels[-1], work / "library")


def _unpack(wheel: Path, folder: Path) -> Path:
    """A wheel built here, unpacked: its dist-info in a folder on Python's path is all that activation needs."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = Path(archive.extract(member, folder))
            if member.external_attr >> 16 & 0o111 and path.is_file():
                path.chmod(0o755)
    return folder


def _measure(setting: Setting, operation: str, runs: int) -> Row:
    sides: dict[str, list[Side]] = {"compiling": [], "pack": []}
    for _ in range(runs):
        for side, taken in sides.items():
            taken.append(_run(setting, side, operation))
    row = Row(operation, tuple(sides["compiling"]), tuple(sides["pack"]))
    print(f"{operation:40} {row.pack[0].cases:5} {row.compiling[0].entries:8} {_times(row)}", flush=True)
    return row


def _times(row: Row) -> str:
    calls = [row.median(side) for side in ("compiling", "pack")]
    processes = [row.median(side, "process") for side in ("compiling", "pack")]
    ratio = "-" if row.ratio is None else f"{row.ratio:.1f} x"
    return f"{calls[0]:10.2f} s {calls[1]:8.3f} s {ratio:>9}   {processes[0]:8.1f} s {processes[1]:6.1f} s"


def _run(setting: Setting, side: str, operation: str) -> Side:
    """One new process with an empty home and cache."""
    with tempfile.TemporaryDirectory(dir=setting.work) as folder:
        home = Path(folder)
        facts = {"operation": operation, "expected": True, **load_shapes(setting.shapes).as_dict()}
        (home / "facts.json").write_text(json.dumps(facts))
        root = project_root()
        assert setting.component.pack is not None
        command = [
            str(setting.environment.runtime / "bin" / "python"),
            str(Path(__file__).with_name("first_call.py")),
            str(root / "csrc" / "aot"),
            str(root / "csrc" / setting.component.name / setting.component.pack.cases[0]),
            *(str(home / "facts.json"), setting.which),
        ]
        start = time.monotonic()
        done = subprocess.run(
            command, env=_variables(setting, side, home), capture_output=True, text=True, check=False, cwd=home
        )
        process = time.monotonic() - start
        if done.returncode:
            sys.stderr.write((done.stdout + done.stderr)[-4000:])
            raise SystemExit(f"{operation} ({side}) ended with status {done.returncode}")
        found = json.loads(done.stdout.splitlines()[-1])
        entries = [*(home / "jit").glob("cache/*/.committed"), *(home / "tilelang").glob("**/kernels/*/")]
        return Side(found["ran"], process, found["cases"], len(entries))


def _variables(setting: Setting, side: str, home: Path) -> dict[str, str]:
    environment = setting.environment
    variables = {"HOME": str(home), "TMPDIR": str(home), "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0"}
    variables |= {f"{prefix}_JIT_CACHE_DIR": str(home / "jit") for prefix in ("DG", "EP")}
    variables |= {"TILELANG_CACHE_DIR": str(home / "tilelang")}
    paths = [setting.library]
    if side == "pack":
        paths.insert(0, setting.work / "pack")
        variables |= {"PATH": "/nonexistent", "ARCHWRIGHT_JIT": "strict"}
    else:
        toolkit, cxx = environment.toolkit, environment.cxx
        path = os.pathsep.join([str(cxx.parent), str(toolkit / "bin"), os.defpath])
        variables |= {"PATH": path, "ARCHWRIGHT_JIT": "off", "CUDA_HOME": str(toolkit)}
        variables |= {"NVCC_CCBIN": str(cxx), "CXX": str(cxx), "CC": str(environment.cc)}
    variables["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    assert setting.component.pack is not None
    return variables | simulation(setting.manifest.device, environment, nccl=setting.component.pack.nccl)


def _show_summary(rows: list[Row]) -> None:
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if ratios:
        print(f"median ratio of {len(ratios)} operations that compile: {statistics.median(ratios):.1f} x")


if __name__ == "__main__":
    sys.exit(main())
