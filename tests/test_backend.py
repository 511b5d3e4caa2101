"""The PEP 517 backend: versions, dependencies (B1), static metadata (C3) and what CMake is told (A2, C4)."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archwright import backend
from archwright.backend import Request, build_folder, build_sdist, wheel_version
from archwright.components import Component, components
from archwright.environment import Environment
from archwright.errors import ArchwrightError, Exit
from archwright.process import STRAY
from archwright.sources import SourceTree
from archwright.targets import Target, target_table

SM100, SM90 = (target_table().targets[name] for name in ("sm100", "sm90"))
BUILT = ("deep_ep", "deep_gemm", "engine", "flash_mla")

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def make_request(environment: Environment) -> Callable[..., Request]:
    def make(name: str, target: Target = SM100, count: int | None = None) -> Request:
        return Request(components()[name], target, target.gencodes[:count], environment)

    return make


@pytest.fixture
def source(tmp_path: Path) -> SourceTree:
    path = tmp_path / "source"
    path.mkdir()
    (path / "PKG-INFO").touch()
    os.utime(path / "PKG-INFO", (1_700_000_000, 1_700_000_000))
    return SourceTree("deep_ep", "2.5.0", "0" * 64, path, {})


@pytest.mark.parametrize(
    ("name", "target", "count", "version"),
    [
        ("flash_mla", SM100, 2, "1.0.0+cu132.sm100"),
        ("flash_mla", SM100, 1, "1.0.0+cu132.sm100.sm100a"),
        ("deep_ep", SM100, 1, "2.5.0+cu132.sm100"),
        ("deep_gemm", SM90, 1, "2.8.2+cu132.sm90.exp"),
    ],
)
def test_versions_say_toolkit_target_and_tier(name: str, target: Target, count: int, version: str) -> None:
    """A2: a wheel with fewer cubins than the target's names those it has."""
    assert wheel_version(components()[name], target, target.gencodes[:count], "cu132") == version


@pytest.mark.parametrize("name", BUILT)
def test_b1_every_wheel_depends_on_the_torch_it_was_built_against(
    name: str, make_request: Callable[..., Request]
) -> None:
    request = make_request(name)
    assert "torch==2.13.*" in request.requires
    other = replace(request, environment=replace(request.environment, torch="2.14.1"))
    assert "torch==2.14.*" in other.requires


def test_b3_deep_ep_depends_on_the_nccl_it_needs(make_request: Callable[..., Request]) -> None:
    assert "nvidia-nccl-cu13>=2.32.3" in make_request("deep_ep").requires
    assert not [r for r in make_request("deep_gemm").requires if "nccl" in r]


def test_the_engines_own_requirements_are_kept(make_request: Callable[..., Request]) -> None:
    requires = make_request("engine").requires
    assert set(components()["engine"].requires) < set(requires)
    assert "tile-kernels==2.1.0" in requires


METADATA = """
import json, pathlib, sys
for name in ("torch", "numpy", "unearth"):
    sys.modules[name] = None  # importing any of them fails
import archwright.backend as backend
from archwright.environment import Environment
backend.environment_of_prefix = lambda: Environment.load(pathlib.Path(sys.argv[1]))
settings = {"cmake.define.ARCHWRIGHT_TARGET": "sm100"}
print(backend.prepare_metadata_for_build_wheel(sys.argv[2], settings))
"""


@pytest.mark.parametrize("name", BUILT)
def test_c3_metadata_needs_neither_torch_nor_sources_nor_a_network(
    name: str, environment: Environment, root: Path, tmp_path: Path, cache: Path, no_network: list[str]
) -> None:
    record, out = tmp_path / "env.json", tmp_path / "metadata"
    record.write_text(json.dumps(environment.as_dict()))
    out.mkdir()

    run = subprocess.run(
        [*no_network, sys.executable, "-c", METADATA, record, out],
        cwd=root / "csrc" / name,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )

    assert run.returncode == 0, run.stderr
    info = run.stdout.split()[-1]
    metadata = email.message_from_string((out / info / "METADATA").read_text())
    component = components()[name]
    assert metadata["Name"].replace("_", "-") == component.distribution
    assert metadata["Version"] == f"{component.version}+cu132.sm100"
    assert metadata["License-Expression"] == component.license
    assert metadata.get_all("License-File") == list(component.license_files)
    assert "torch==2.13.*" in metadata.get_all("Requires-Dist")
    assert metadata["Requires-Python"] == "==3.12.*"
    assert not (cache / "sources").exists()


def error_of(call: Callable[[], object]) -> ArchwrightError:
    with pytest.raises(ArchwrightError) as caught:
        call()
    return caught.value


@pytest.fixture
def here(environment: Environment, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip calls the backend: in a component's folder, in the environment's toolchain."""
    monkeypatch.chdir(root / "csrc" / "deep_ep")
    monkeypatch.setattr(backend, "environment_of_prefix", lambda: environment)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("gencodes", ["sm_100a", "sm_100a,sm_103a", "sm_100a;sm_103a", ""])
def test_settings_become_a_request(gencodes: str) -> None:
    request = backend._request(
        {"cmake.define.ARCHWRIGHT_TARGET": "sm100", "cmake.define.ARCHWRIGHT_GENCODES": gencodes}
    )
    assert request.component.name == "deep_ep"
    assert request.target == SM100
    assert [g.name for g in request.gencodes] == (
        gencodes.replace(";", ",").split(",") if gencodes else ["sm_100a", "sm_103a"]
    )


@pytest.mark.usefixtures("here")
def test_without_settings_the_environment_says_the_target() -> None:
    assert backend._request(None).target == SM100


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"cmake.define.CMAKE_CXX_FLAGS": "-O0"}, "AW109"),
        ({"build-dir": "/tmp/x"}, "AW109"),
        ({"cmake.define.ARCHWRIGHT_TARGET": "rtx4090"}, "AW102"),
        ({"cmake.define.ARCHWRIGHT_TARGET": "sm90"}, "AW106"),
        ({"cmake.define.ARCHWRIGHT_GENCODES": "sm_100f"}, "AW107"),
        ({"cmake.define.ARCHWRIGHT_NCCL_ROOT": "/nowhere"}, "AW312"),
    ],
)
def test_settings_that_would_make_another_wheel_are_refused(settings: dict[str, str], code: str) -> None:
    assert error_of(lambda: backend._request(settings)).code == code


@pytest.mark.usefixtures("here")
def test_b6_the_environment_of_another_target_is_refused(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "environment_of_prefix", lambda: replace(environment, target="sm90"))
    error = error_of(lambda: backend._request({"cmake.define.ARCHWRIGHT_TARGET": "sm100"}))
    assert error.code == "AW307"
    assert "sm90" in error.found


def test_outside_an_environment_nothing_is_built(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root / "csrc" / "deep_ep")
    monkeypatch.setattr(sys, "prefix", "/usr/somewhere")
    assert error_of(lambda: backend._request(None)).code == "AW307"


def test_an_sdist_is_not_made_of_upstreams_sources(tmp_path: Path) -> None:
    error = error_of(lambda: build_sdist(str(tmp_path)))
    assert error.code == "AW109"
    assert list(tmp_path.iterdir()) == [tmp_path / "cache"] or not list(tmp_path.iterdir())


def test_errors_end_the_backend_in_words_and_not_in_a_traceback(
    capsys: pytest.CaptureFixture[str], root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(root / "csrc" / "deep_ep")
    monkeypatch.setattr(sys, "prefix", "/usr/somewhere")
    with pytest.raises(SystemExit) as caught:
        backend.build_wheel(str(tmp_path))
    assert caught.value.code == Exit.UNFIT
    assert capsys.readouterr().err.startswith("AW307: ")


def test_a1_the_toolchain_is_checked_before_the_first_compile(make_request: Callable[..., Request]) -> None:
    request = make_request("flash_mla")
    assert backend._check_toolchain(request) is None
    old = replace(request, environment=replace(request.environment, nvcc="12.6.20"))
    assert error_of(lambda: backend._check_toolchain(old)).code == "AW305"
    below = replace(request, environment=replace(request.environment, nvcc="13.0.88"))
    assert "flash_mla" in error_of(lambda: backend._check_toolchain(below)).needed


def test_a1_an_old_nvcc_ends_the_build_before_anything_is_fetched_or_compiled(
    environment: Environment,
    root: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(root / "csrc" / "flash_mla")
    monkeypatch.setattr(backend, "environment_of_prefix", lambda: replace(environment, nvcc="12.4.131"))
    monkeypatch.setattr(backend, "build_folder", lambda *words: tmp_path / "build")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")

    with pytest.raises(SystemExit) as caught:
        backend.build_wheel(str(tmp_path), {"cmake.define.ARCHWRIGHT_TARGET": "sm100"})

    assert caught.value.code == Exit.UNFIT
    assert capsys.readouterr().err.startswith("AW305: ")
    assert not (tmp_path / "build").exists()
    assert not (cache / "sources").exists()


def test_b3_an_nccl_below_the_floor_is_refused_before_the_first_compile(make_request: Callable[..., Request]) -> None:
    request = make_request("deep_ep")
    old = replace(request, environment=replace(request.environment, nccl="2.29.7"))
    error = error_of(lambda: backend._check_toolchain(old))
    assert error.code == "AW312"
    assert "2.29.7" in error.found
    assert "2.32.3" in error.needed
    assert backend._check_toolchain(replace(old, component=components()["deep_gemm"])) is None


def test_c4_nothing_stray_is_left_when_cmake_starts(
    make_request: Callable[..., Request], source: SourceTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(os.environ)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in STRAY:
        os.environ[name] = "/stray"

    backend._shield_environment(make_request("deep_ep"), source)

    assert "/stray" not in os.environ.values()
    assert os.environ["SOURCE_DATE_EPOCH"] == "1700000000"
    assert os.environ["LC_ALL"] == "C.UTF-8"
    assert os.environ["CCACHE_COMPILERCHECK"] == "content"
    assert before.get("SOURCE_DATE_EPOCH") is None


def values_of(cache_file: Path) -> dict[str, str]:
    """The variables of an initial cache, as CMake itself reads them."""
    script = cache_file.with_name("print.cmake")
    script.write_text(
        f"include({cache_file})\nget_cmake_property(names CACHE_VARIABLES)\n"
        'foreach(name IN LISTS names)\nmessage("${name}=${${name}}")\nendforeach()\n'
    )
    cmake = Path(sys.executable).with_name("cmake")
    run = subprocess.run([cmake, "-P", script], capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in run.stderr.splitlines() if "=" in line)


def test_cmake_is_told_everything_and_reads_it_as_it_was_meant(
    make_request: Callable[..., Request], source: SourceTree, tmp_path: Path, environment: Environment
) -> None:
    request = make_request("flash_mla")
    values = values_of(backend._initial_cache(tmp_path / "build", request, source))

    assert values["ARCHWRIGHT_GENCODES"] == "arch=compute_100a,code=sm_100a;arch=compute_103a,code=sm_103a"
    assert values["ARCHWRIGHT_UNITS"].split(";") == [unit.path for unit in request.component.units]
    assert values["ARCHWRIGHT_SOURCE"] == str(source.path)
    assert values["CMAKE_CUDA_ARCHITECTURES"] == "OFF"
    assert values["CMAKE_CXX_COMPILER"] == str(environment.cxx)
    assert values["CUDAToolkit_ROOT"] == str(environment.toolkit)
    assert "launcher.py" in values["CMAKE_CUDA_COMPILER_LAUNCHER"]


def test_nothing_is_rewritten_when_nothing_changed(
    make_request: Callable[..., Request], source: SourceTree, tmp_path: Path
) -> None:
    folder = tmp_path / "build"
    first = backend._initial_cache(folder, make_request("flash_mla"), source)
    for path in (first, folder / "guard" / "_archwright.json", folder / "guard" / "_archwright.py"):
        os.utime(path, (1, 1))

    backend._initial_cache(folder, make_request("flash_mla"), source)
    assert {p.stat().st_mtime for p in (first, *(folder / "guard").iterdir())} == {1.0}

    backend._initial_cache(folder, make_request("flash_mla", count=1), source)
    assert first.stat().st_mtime != 1.0


def test_a2_the_guard_knows_the_devices_of_the_wheels_own_gencodes(
    make_request: Callable[..., Request], source: SourceTree, tmp_path: Path
) -> None:
    def devices(name: str, count: int) -> set[str]:
        folder = tmp_path / f"{name}{count}"
        backend._initial_cache(folder, make_request(name, count=count), source)
        return set(json.loads((folder / "guard" / "_archwright.json").read_text())["devices"])

    assert devices("flash_mla", 2) == {"10.0", "10.3"}
    assert devices("flash_mla", 1) == {"10.0"}, "sm_100a code does not run on a B300"
    assert devices("deep_gemm", 1) == {"10.0", "10.3"}, "no device code inside: compiled at run time"


def test_g3_the_guard_knows_cann_and_torch_npu_for_ascend_only(
    make_request: Callable[..., Request], source: SourceTree, tmp_path: Path, environment: Environment
) -> None:
    def facts(request: Request) -> dict[str, Any]:
        backend._initial_cache(tmp_path, request, source)
        found: dict[str, Any] = json.loads((tmp_path / "guard" / "_archwright.json").read_text())
        return found

    ascend = target_table().targets["ascend950"]
    recipe = components()["flash_mla"].of(ascend)
    found = facts(Request(recipe, ascend, (), replace(environment, target="ascend950", nvcc="")))
    assert (found["torch_npu"], found["cann"]["release"]) == ("2.13.0rc1", "9.2")
    assert {"libhccl.so", "libascendcl.so"} < set(found["cann"]["libraries"])
    assert str(Path.home()) not in json.dumps(found), "a wheel says nothing of who built it"

    found = facts(make_request("flash_mla"))
    assert (found["torch_npu"], found["cann"]) == (None, None)


def test_no_compiler_cache_when_the_user_says_so(
    monkeypatch: pytest.MonkeyPatch, script: Callable[[str, str], Path]
) -> None:
    monkeypatch.setenv("PATH", str(script("ccache", "true").parent))
    assert str(backend._ccache()).endswith("/ccache")
    monkeypatch.setenv("ARCHWRIGHT_NO_CACHE", "1")
    assert backend._ccache() is None


def test_one_folder_for_each_cell_and_selection_of_gencodes() -> None:
    flash_mla, engine = components()["flash_mla"], components()["engine"]
    folders = {
        build_folder(flash_mla, SM100, SM100.gencodes),
        build_folder(flash_mla, SM100, SM100.gencodes[:1]),
        build_folder(flash_mla, SM100, SM100.gencodes[1:]),
        build_folder(engine, SM100, SM100.gencodes),
        build_folder(engine, SM90, SM90.gencodes),
    }
    assert len(folders) == 5
    assert build_folder(engine, SM100, SM100.gencodes[:1]) == build_folder(engine, SM100, SM100.gencodes)


def test_an_installed_tool_builds_in_the_cache(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: Component
) -> None:
    monkeypatch.setattr(backend, "project_root", lambda: tmp_path / "site-packages" / "archwright" / "_project")
    assert build_folder(tiny, SM100, SM100.gencodes).is_relative_to(cache)
