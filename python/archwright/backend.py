"""The PEP 517 backend of the components: scikit-build-core, told everything by the recipe and the environment.

`pip wheel --no-build-isolation --no-deps csrc/deep_ep -C cmake.define.ARCHWRIGHT_TARGET=sm100`, run with the pip of a
prepared environment, makes the same wheel as the command line tool, which runs just that.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import __version__
from .ascend import ascend_values, cann_for, toolkit_of
from .cann import VARIABLES, Cann, guard_facts
from .cellock import cell_lock
from .components import Component, components, select_cells
from .environment import Environment, environment_of_prefix, use_nccl_root
from .errors import ArchwrightError, fail
from .finish import BuildReport, finish_metadata, finish_wheel
from .measured import Toolchain, remember, units_for
from .packs import jit_cache, pack_arches, pack_values
from .plan import make_plan
from .pool import Pool
from .process import STRAY
from .project import cache_dir, project_root, write_if_changed
from .ptxas import read_reports
from .sources import SourceTree, fetch
from .targets import Gencode, Target, Tier, select_gencodes, target_table
from .toolkit import check_nvcc_floor

__all__ = [
    "Metadata",
    "Request",
    "build_folder",
    "build_sdist",
    "build_wheel",
    "compile_host_files",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
    "wheel_version",
]

Settings = Mapping[str, str | list[str]] | None


@dataclass(frozen=True)
class Request:
    """What one wheel is built from: recipe, environment, target and gencodes."""

    component: Component
    target: Target
    gencodes: tuple[Gencode, ...]
    environment: Environment
    device: str | None = None
    shapes: str | None = None
    host_only: bool = False
    cann: Cann | None = None

    @property
    def toolkit(self) -> str:
        return toolkit_of(self.component, self.target, self.environment, self.cann)

    @property
    def version(self) -> str:
        return wheel_version(self.component, self.target, self.gencodes, self.toolkit, self.device)

    @property
    def arches(self) -> tuple[str, ...]:
        """The architectures that the wheel's kernels are for."""
        if self.component.pack:
            return pack_arches(self.component, self.target, self.device)
        return tuple(gencode.name for gencode in self.gencodes)

    @property
    def requires(self) -> list[str]:
        """Requires-Dist: torch at the minor version built against, NCCL's floor, and the recipe's own."""
        result = list(self.component.requires)
        if self.component.pack:
            result += [f"{name}=={version}.*" for name, version in self.component.pack.libraries.items()]
        if self.component.torch:
            result.append(f"torch=={'.'.join(self.environment.torch.split('.')[:2])}.*")
        if self.component.torch_npu:
            result.append(f"torch-npu=={self.component.torch_npu}")
        if self.component.nccl:
            result.append(f"nvidia-nccl-cu13>={self.component.nccl}")
        return result


def wheel_version(
    component: Component, target: Target, gencodes: tuple[Gencode, ...], toolkit: str, device: str | None = None
) -> str:
    """Upstream's version with the local part `cu132.sm100`, then `exp` when experimental.

    A wheel with device code for fewer than all of the target's gencodes names those it has (`...sm100.sm100a`); an AOT
    pack names the device whose properties chose its kernels (`...sm100.b200`).
    """
    words = [toolkit, target.name, *_cell_words(component, target, gencodes, device)]
    if target.tier is Tier.EXPERIMENTAL:
        words.append("exp")
    return f"{component.version}+{'.'.join(words)}"


def build_folder(
    component: Component, target: Target, gencodes: tuple[Gencode, ...], device: str | None = None
) -> Path:
    """Where the component's objects are kept between builds: in the checkout, else in the cache."""
    root = project_root()
    base = root / "build" if (root / ".git").exists() or (root / "pyproject.toml").is_file() else cache_dir() / "build"
    return base / "-".join([target.name, *_cell_words(component, target, gencodes, device)]) / component.name


def _cell_words(component: Component, target: Target, gencodes: tuple[Gencode, ...], device: str | None) -> list[str]:
    if component.pack:
        return [device or component.pack.devices[target.name]]
    if component.has_device_code and len(gencodes) < len(target.gencodes):
        return [gencode.name.replace("_", "") for gencode in gencodes]
    return []


class Metadata:
    """Provider for scikit-build-core: version, description, licence and dependencies come from the recipe."""

    request: Request

    def dynamic_metadata(self, settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
        component = Metadata.request.component
        return {
            "version": Metadata.request.version,
            "description": component.summary,
            "license": component.license,
            "dependencies": Metadata.request.requires,
        }


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return []  # everything is in the environment, by its lock


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    raise fail(
        "AW109",
        found="a request for a source archive of a component",
        needed="a wheel",
        why="upstream's sources are fetched and verified at build time and never redistributed by Archwright",
        fix="use `archwright build` or `pip wheel`",
    )


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Settings = None) -> str:
    """Write the dist-info without configuring CMake, fetching sources or importing torch."""
    from scikit_build_core.build import prepare_metadata_for_build_wheel as prepare

    with _one_line_errors():
        Metadata.request = request = _request(config_settings)
        name: str = prepare(metadata_directory, {"cmake.build-type": "Release", "build-dir": ""})
        finish_metadata(Path(metadata_directory) / name / "METADATA", request.component)
        return name


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build the wheel of the component in the current folder."""
    from scikit_build_core.build import build_wheel as build

    with _prepared(config_settings) as (request, source, folder, cache), tempfile.TemporaryDirectory() as scratch:
        settings: dict[str, str | list[str]] = {
            "build-dir": str(folder),
            "cmake.args": f"-C{cache}",
            "build.tool-args": _jobs(request),
        }
        raw = build(scratch, settings)
        facts = json.loads((folder / "guard" / "_archwright.json").read_text(encoding="utf-8"))
        report = _build_report(folder, request)
        wheel = finish_wheel(Path(scratch) / raw, Path(wheel_directory), request, source, facts, report)
    return wheel.name


def compile_host_files(config_settings: Settings = None) -> None:
    """Compile the host files of the component in the current folder, and make no wheel of them.

    What can be checked without the device's compiler. Not a hook of PEP 517: `archwright build --host-only` calls it.
    """
    with _prepared(config_settings, host_only=True) as (request, _, folder, cache):
        tools, python = Path(sys.executable).parent, Path(sys.executable)
        values = {"CMAKE_BUILD_TYPE": "Release", "CMAKE_MAKE_PROGRAM": tools / "ninja", "Python_EXECUTABLE": python}
        defined = [f"-D{name}={value}" for name, value in values.items()]
        configure = [f"-C{cache}", *defined, "-G", "Ninja", "-S", str(request.component.folder), "-B", str(folder)]
        for words in (configure, ["--build", str(folder), "--", _jobs(request)]):
            subprocess.run([tools / "cmake", *words], check=True)


@contextlib.contextmanager
def _prepared(
    config_settings: Settings, *, host_only: bool = False
) -> Iterator[tuple[Request, SourceTree, Path, Path]]:
    """The request, its sources, its locked build folder and CMake's initial cache there, with a pool to compile in."""
    with _one_line_errors():
        Metadata.request = request = _request(config_settings, host_only=host_only)
        _check_toolchain(request)
        source = fetch(request.component, offline=bool(os.environ.get("ARCHWRIGHT_OFFLINE")))
        folder = build_folder(request.component, request.target, request.gencodes, request.device)
        folder = folder / "host" if host_only else folder
        with cell_lock(folder), _pool(request, source):
            _shield_environment(request, source)  # only now: the pool's plan honours MAX_JOBS
            yield request, source, folder, _initial_cache(folder, request, source)


def _jobs(request: Request) -> str:
    """Ninja starts everything at once: the pool decides what runs."""
    return f"-j{len(request.component.units) + 8}"


def _build_report(folder: Path, request: Request) -> BuildReport:
    """ptxas's words from the logs beside the objects, and the environment's disassembler."""
    rejected = folder / "rejected"
    if not request.component.has_device_code:
        return BuildReport(rejected)
    if request.component.pack:
        logs = sorted(jit_cache(request).rglob("*.ptxas"))
    else:
        logs = sorted((folder / "CMakeFiles" / "extension.dir").rglob("*.o.log"))
    disassembler = request.environment.toolkit / "bin" / "nvdisasm"  # not every release's packages have it
    return BuildReport(
        rejected, read_reports(logs), disassembler if disassembler.is_file() else None, folder / "sass.json"
    )


def _request(config_settings: Settings, *, host_only: bool = False) -> Request:
    asked = {key.removeprefix("cmake.define."): value for key, value in (config_settings or {}).items()}
    unknown = asked.keys() - {
        "ARCHWRIGHT_TARGET",
        "ARCHWRIGHT_GENCODES",
        "ARCHWRIGHT_EXPERIMENTAL",
        "ARCHWRIGHT_NCCL_ROOT",
        "ARCHWRIGHT_DEVICE",
        "ARCHWRIGHT_SHAPES",
    }
    if unknown:
        raise fail(
            "AW109",
            found=f"setting {', '.join(sorted(unknown))}",
            needed="ARCHWRIGHT_TARGET, _GENCODES, _EXPERIMENTAL, _NCCL_ROOT, or for AOT packs _DEVICE and _SHAPES",
            why="any other setting would make another wheel than the recipe's",
            fix="leave it out, or change the recipe",
        )
    environment = environment_of_prefix()
    target = target_table().find(str(asked.get("ARCHWRIGHT_TARGET", environment.target)))
    name = Path.cwd().name
    experimental, packs = bool(asked.get("ARCHWRIGHT_EXPERIMENTAL")), components()[name].pack is not None
    (component,) = select_cells(
        target, (name,), platform.machine(), experimental=experimental, packs=packs, host_only=host_only
    )
    if target.name != environment.target:
        raise fail(
            "AW307",
            found=f"the environment of {environment.target}",
            needed=f"the environment of {target.name}",
            why="each target has its own locks",
            fix=f"`archwright env create {target.name}` and use its toolchain",
        )
    names = tuple(filter(None, str(asked.get("ARCHWRIGHT_GENCODES", "")).replace(";", ",").split(",")))
    root = asked.get("ARCHWRIGHT_NCCL_ROOT")
    environment = use_nccl_root(environment, Path(str(root)) if root else None)
    device, shapes = (str(asked[key]) if key in asked else None for key in ("ARCHWRIGHT_DEVICE", "ARCHWRIGHT_SHAPES"))
    cann = cann_for(component, target)
    return Request(component, target, select_gencodes(target, names), environment, device, shapes, host_only, cann)


def _check_toolchain(request: Request) -> None:
    floors = {f"gencode {g.name}": str(g.nvcc) for g in request.gencodes}
    if request.component.nvcc_floor:
        floors[request.component.name] = request.component.nvcc_floor
    if request.environment.nvcc:  # an Ascend environment has none
        check_nvcc_floor(request.environment.nvcc, floors)
    if request.component.nccl:
        have, need = (tuple(int(p) for p in v.split(".")) for v in (request.environment.nccl, request.component.nccl))
        if have < need:
            raise fail(
                "AW312",
                found=f"NCCL {request.environment.nccl} at {request.environment.nccl_root}",
                needed=f"NCCL {request.component.nccl} or newer for {request.component.name}",
                why="it uses NCCL functions that older releases lack",
                fix="use the locked NCCL, or name a newer one",
            )


def _shield_environment(request: Request, source: SourceTree) -> None:
    """Take stray variables out of this process and set what makes the result repeatable."""
    for name in STRAY:
        os.environ.pop(name, None)
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    os.environ["LC_ALL"] = "C.UTF-8"
    if request.cann:  # for CANN's own scripts
        os.environ |= {name: str(request.cann.root) for name in VARIABLES}
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(int((source.path / "PKG-INFO").stat().st_mtime)))
    # Objects depend on the compilers' content, not on time stamps or on where the checkout lies.
    os.environ |= {
        "CCACHE_COMPILERCHECK": "content",
        "CCACHE_EXTRAFILES": str(request.environment.compilers),
        "CCACHE_SLOPPINESS": "pch_defines,time_macros,include_file_mtime,include_file_ctime",
        "CCACHE_BASEDIR": str(project_root()),
        "CCACHE_NOHASHDIR": "1",
    }


@contextlib.contextmanager
def _pool(request: Request, source: SourceTree) -> Iterator[None]:
    """The command line tool's pool when there is one, else a pool for this component alone."""
    if os.environ.get("ARCHWRIGHT_POOL"):
        yield
        return
    toolchain = Toolchain.of(request.environment, request.gencodes)
    plan = make_plan(request.target, (request.component,), request.gencodes, toolchain=toolchain)
    units = units_for(request.component, request.gencodes, toolchain)
    folder = build_folder(request.component, request.target, request.gencodes, request.device)
    root = request.component.unit_root(source.path, folder)
    costs = {str(root / unit.path): unit for unit in units}
    with Pool(plan.jobs, plan.memory_mib, costs, on_news=lambda message: print(message, flush=True)) as pool:
        os.environ["ARCHWRIGHT_POOL"] = pool.address
        try:
            yield
        finally:
            del os.environ["ARCHWRIGHT_POOL"]
            remember(toolchain, request.component, root, pool.measured)


def _pack_of(library: Component) -> dict[str, object] | None:
    """What the import guard has to know of the AOT pack with the library's kernels."""
    for component in components().values():
        if component.pack and component.pack.library == library.name:
            prefixes = () if component.pack.jit == "tilelang" else (component.pack.jit, "DJ")
            variables = [f"{prefix}_JIT_NVCC_COMPILER" for prefix in prefixes]
            return {"distribution": component.distribution, "variables": variables}
    return None


def _initial_cache(folder: Path, request: Request, source: SourceTree) -> Path:
    """Write the import guard's facts and CMake's initial cache, each only when it changes, so that nothing rebuilds."""
    environment, component = request.environment, request.component
    guard = folder / "guard"
    facts = {
        "distribution": component.distribution,
        "package": component.package,
        "version": request.version,
        "target": request.target.name,
        "tier": str(request.target.tier),
        "python": target_table().python,
        "processor": platform.machine(),
        "torch": environment.torch if component.torch else None,
        "torch_npu": component.torch_npu,
        "cann": guard_facts(request.target.cann) if request.target.cann else None,
        "nccl": component.nccl,
        "driver": component.driver,
        "devices": {
            capability: list(names)
            for capability, names in request.target.devices.items()
            if request.target.is_ascend
            or not component.has_device_code
            or any(capability in g.runs_on for g in request.gencodes)
        },
        "pack": _pack_of(component),
        "archwright": __version__,
    }
    write_if_changed(guard / "_archwright.json", json.dumps(facts, indent=1, sort_keys=True) + "\n")
    write_if_changed(
        guard / "_archwright.py", (project_root() / "csrc" / "guard" / "_archwright.py").read_text(encoding="utf-8")
    )
    launcher = [sys.executable, "-I", "-S", str(Path(__file__).with_name("launcher.py"))]
    compile_launcher = [*launcher, *filter(None, [_ccache()])]
    values: dict[str, object] = {
        "ARCHWRIGHT_TARGET": request.target.name,
        "ARCHWRIGHT_VENDOR": request.target.vendor,
        "ARCHWRIGHT_HOST_ONLY": int(request.host_only),
        "ARCHWRIGHT_CMAKE": project_root() / "cmake",
        "ARCHWRIGHT_SOURCE": source.path,
        "ARCHWRIGHT_UNITS": [unit.path for unit in component.units],
        "ARCHWRIGHT_ENVIRONMENT": environment.path,
        "ARCHWRIGHT_TORCH": environment.runtime_site / "torch",
        "ARCHWRIGHT_GUARD": guard,
        "CMAKE_CXX_COMPILER": environment.cxx,
        "CMAKE_C_COMPILER": environment.cc,
        "CMAKE_CXX_COMPILER_LAUNCHER": compile_launcher,
        "CMAKE_CXX_FLAGS_RELEASE": "",  # each component's flags are upstream's
    }
    if request.target.is_ascend:
        values |= ascend_values(request, launcher)
    else:
        values |= _cuda_values(request, compile_launcher)
    if component.pack:
        values |= pack_values(folder, request, launcher)
    lines = [f'set({name} {_quote(value)} CACHE INTERNAL "" FORCE)' for name, value in values.items()]
    return write_if_changed(folder / "archwright.cmake", "\n".join(lines) + "\n")


def _cuda_values(request: Request, launcher: list[str]) -> dict[str, object]:
    environment = request.environment
    return {
        "ARCHWRIGHT_GENCODES": [gencode.flag for gencode in request.gencodes],
        "ARCHWRIGHT_NCCL": environment.nccl_root,
        "CUDAToolkit_ROOT": environment.toolkit,
        "CMAKE_CUDA_COMPILER": environment.toolkit / "bin" / "nvcc",
        "CMAKE_CUDA_HOST_COMPILER": environment.cxx,
        "CMAKE_CUDA_ARCHITECTURES": "OFF",  # the gencodes are given whole
        "CMAKE_CUDA_RUNTIME_LIBRARY": "Shared",
        "CMAKE_CUDA_COMPILER_LAUNCHER": launcher,
        "CMAKE_CUDA_FLAGS_RELEASE": "",
    }


def _quote(value: object) -> str:
    text = ";".join(map(str, value)) if isinstance(value, list) else str(value)
    return f"[==[{text}]==]"


def _ccache() -> str | None:
    import shutil

    return None if os.environ.get("ARCHWRIGHT_NO_CACHE") else shutil.which("ccache") or shutil.which("sccache")


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Our errors end the backend with their own words instead of a traceback."""
    try:
        yield
    except ArchwrightError as error:
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(int(error.exit)) from None
