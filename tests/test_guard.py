"""The import guard inside the wheels (cases A4, B2, B3), in processes of their own."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from . import guardsite
from .guardsite import NVML, Site, assert_stopped

site = guardsite.site

PACK = {"distribution": "archwright-aot-deep-ep", "variables": ["EP_JIT_NVCC_COMPILER"]}


def test_what_fits_is_imported_in_silence(site: Site) -> None:
    run = site.run("import pkg; print('imported')")
    assert (run.returncode, run.stdout, run.stderr) == (0, "imported\n", "")


def test_aw601_without_a_driver(site: Site) -> None:
    site.facts(driver=True)
    if site.run("import ctypes; ctypes.CDLL('libcuda.so.1')").returncode == 0:
        pytest.skip("this machine has an NVIDIA driver")

    assert_stopped(site.run(), "AW601", "libcuda.so.1", "B200", "--gpus all")


def test_a_driver_that_can_be_loaded_is_enough(site: Site, gcc: str) -> None:
    site.facts(driver=True)
    site.library("libcuda.so.1", "int cuInit(unsigned flags) { return flags; }", gcc)
    assert site.run().returncode == 0


@pytest.mark.parametrize("version", ["2.12.1", "2.14.0", "3.13.0", "2.1.3"])
def test_b2_aw602_another_torch_names_both_versions(version: str, site: Site) -> None:
    site.install("torch", version)
    assert_stopped(site.run(), "AW602", f"torch {version}", "built against 2.13.0", "torch==2.13.0")


def test_b2_aw602_no_torch(site: Site) -> None:
    site.install("torch", None)
    assert_stopped(site.run(), "AW602", "no torch", "torch 2.13.*")


@pytest.mark.parametrize(
    "version", ["2.13.0", "2.13.1", "2.13.0+cu132", "2.13.0+cpu", "2.13.0rc1", "2.13.0.dev20260101"]
)
def test_b2_another_build_of_the_same_minor_version_is_accepted(version: str, site: Site) -> None:
    site.install("torch", version)
    assert site.run().returncode == 0


@pytest.mark.parametrize("version", ["2.29.7", "2.32.2", "1.99.9"])
def test_b3_aw603_the_nccl_that_torch_pins_is_too_old(version: str, site: Site) -> None:
    site.install("nvidia-nccl-cu13", version)
    assert_stopped(site.run(), "AW603", f"nvidia-nccl-cu13 {version}", "2.32.3 or newer", "--no-deps")


def test_b3_aw603_no_nccl_at_all(site: Site) -> None:
    site.install("nvidia-nccl-cu13", None)
    assert_stopped(site.run(), "AW603", "no nvidia-nccl-cu13")


@pytest.mark.parametrize("version", ["2.32.3", "2.32.10", "2.33.0", "3.0.0"])
def test_b3_a_newer_nccl_is_accepted(version: str, site: Site) -> None:
    site.install("nvidia-nccl-cu13", version)
    assert site.run().returncode == 0


def test_b4_a_root_that_the_user_names_is_believed(site: Site) -> None:
    site.install("nvidia-nccl-cu13", "2.29.7")
    assert site.run(EP_NCCL_ROOT_DIR="/opt/nccl").returncode == 0


def test_a_wheel_that_needs_neither_torch_nor_nccl_does_not_ask(site: Site) -> None:
    site.facts(torch=None, nccl=None)
    site.install("torch", None)
    site.install("nvidia-nccl-cu13", None)
    assert site.run().returncode == 0


@pytest.mark.parametrize(
    ("devices", "found"),
    [("8.9", "8.9"), ("12.0", "12.0"), ("9.0", "9.0"), ("9.0,8.9,9.0", "8.9, 9.0"), ("11.0", "11.0")],
)
def test_a4_aw604_another_device_is_named_before_no_kernel_image(
    devices: str, found: str, site: Site, gcc: str
) -> None:
    site.library("libnvidia-ml.so.1", NVML, gcc)
    run = site.run(FAKE_DEVICES=devices)
    assert_stopped(run, "AW604", f"compute capability {found}\n", "10.0, 10.3", "B200", "GB300", "archwright targets")


@pytest.mark.parametrize("devices", ["10.0", "10.3", "8.9,10.0", ""])
def test_a4_a_device_of_the_target_or_none_is_fine(devices: str, site: Site, gcc: str) -> None:
    site.library("libnvidia-ml.so.1", NVML, gcc)
    assert site.run(FAKE_DEVICES=devices).returncode == 0


def test_a2_a_wheel_for_one_gencode_names_its_devices_only(site: Site, gcc: str) -> None:
    """A wheel with sm_100a cubins alone does not run on a B300."""
    site.library("libnvidia-ml.so.1", NVML, gcc)
    site.facts(devices={"10.0": ["B200", "GB200"]})
    run = site.run(FAKE_DEVICES="10.3")
    assert_stopped(run, "AW604", "compute capability 10.3")
    assert "B300" not in run.stderr


def test_a_driver_library_that_does_not_answer_stops_nothing(site: Site, gcc: str) -> None:
    site.library("libnvidia-ml.so.1", NVML, gcc)
    assert site.run(FAKE_DEVICES="8.9", FAKE_BROKEN="1").returncode == 0


def test_an_old_driver_library_stops_nothing(site: Site, gcc: str) -> None:
    """Functions that are missing are no reason for a riddle."""
    site.library("libnvidia-ml.so.1", "int nvmlInit_v2(void) { return 0; }", gcc)
    assert site.run().returncode == 0


@pytest.mark.parametrize("facts", [{"python": "3.11"}, {"python": "3.13"}, {"processor": "riscv64"}])
def test_aw605_another_python_or_processor(facts: dict[str, str], site: Site) -> None:
    site.facts(**facts)
    assert_stopped(site.run(), "AW605", *facts.values(), platform.machine())


@pytest.mark.parametrize("word", ["off", "OFF"])
def test_it_can_be_switched_off(word: str, site: Site) -> None:
    site.install("torch", "1.0.0")
    site.facts(python="2.7")
    assert site.run(ARCHWRIGHT_GUARD=word).returncode == 0


@pytest.mark.parametrize("word", ["on", "0", ""])
def test_nothing_but_off_switches_it_off(word: str, site: Site) -> None:
    site.install("torch", "1.0.0")
    assert_stopped(site.run(ARCHWRIGHT_GUARD=word), "AW602")


def test_it_says_no_before_torch_is_imported(site: Site) -> None:
    (site.folder / "torch.py").write_text("raise SystemExit('undefined symbol: riddle')")
    site.install("torch", "2.12.0")
    run = site.run()
    assert_stopped(run, "AW602")
    assert "riddle" not in run.stderr


def test_it_is_an_import_error_that_names_the_package(site: Site) -> None:
    site.install("torch", None)
    run = site.run("try:\n import pkg\nexcept ImportError as error:\n print(error.name)")
    assert (run.returncode, run.stdout) == (0, "pkg\n")


def test_check_before_acts_on_the_named_module_only(site: Site) -> None:
    """The engine's package is usable without a device; its extension is not."""
    site.package("from . import _archwright\n_archwright.check_before('pkg._C')\n")
    (site.folder / "pkg" / "_C.py").write_text("loaded = True\n")
    (site.folder / "pkg" / "tools.py").write_text("")
    site.install("torch", None)

    package = site.run("import pkg, pkg.tools, json; print('imported')")
    assert (package.returncode, package.stdout) == (0, "imported\n")

    for code in ("import pkg._C", "from pkg import _C", "import importlib, pkg; importlib.import_module('pkg._C')"):
        assert_stopped(site.run(code), "AW602")


def test_check_before_lets_the_module_through_when_all_fits(site: Site) -> None:
    site.package("from . import _archwright\n_archwright.check_before('pkg._C')\n")
    (site.folder / "pkg" / "_C.py").write_text("loaded = True\n")
    assert site.run("import pkg._C; print(pkg._C.loaded)").stdout == "True\n"


def test_it_needs_nothing_but_the_standard_library_and_starts_nothing(root: Path) -> None:
    import ast

    tree = ast.parse((root / "csrc" / "guard" / "_archwright.py").read_text())
    names = {alias.name.partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    names |= {str(n.module).partition(".")[0] for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert names <= sys.stdlib_module_names
    assert not names & {"subprocess", "socket", "urllib"}


@pytest.fixture
def without_nvcc(site: Site) -> Site:
    """A library with an AOT pack, on a machine without a toolkit in the place where everybody looks."""
    guard = site.folder / "pkg" / "_archwright.py"
    guard.write_text(guard.read_text().replace("/usr/local/cuda", "/nonexistent"))
    site.facts(pack=PACK)
    return site


def test_aw609_neither_pack_nor_compiler_is_a_warning(without_nvcc: Site) -> None:
    run = without_nvcc.run(PATH="/nonexistent")
    assert run.returncode == 0
    for words in ("RuntimeWarning", "AW609", "archwright-aot-deep-ep", "EP_JIT_NVCC_COMPILER"):
        assert words in run.stderr


def test_aw609_where_only_the_pack_may_be_used_it_stops(without_nvcc: Site) -> None:
    assert_stopped(without_nvcc.run(PATH="/nonexistent", ARCHWRIGHT_JIT="strict"), "AW609", "no archwright-aot-deep-ep")


@pytest.mark.parametrize("name", ["CUDA_HOME", "EP_JIT_NVCC_COMPILER", "PATH"])
def test_a_compiler_is_found_where_upstream_looks(name: str, without_nvcc: Site, tmp_path: Path) -> None:
    nvcc = tmp_path / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text("")
    nvcc.chmod(0o755)
    places = {"CUDA_HOME": nvcc.parents[1], "EP_JIT_NVCC_COMPILER": nvcc, "PATH": nvcc.parent}
    assert "AW609" not in without_nvcc.run(**({"PATH": "/nonexistent"} | {name: str(places[name])})).stderr


def test_aw609_also_stops_where_a_compiler_must_not_be_used(without_nvcc: Site, tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("")
    nvcc.chmod(0o755)
    assert_stopped(without_nvcc.run(EP_JIT_NVCC_COMPILER=str(nvcc), ARCHWRIGHT_JIT="strict"), "AW609", "strict is set")


def test_the_pack_makes_a_compiler_unnecessary(without_nvcc: Site) -> None:
    without_nvcc.install("archwright-aot-deep-ep", "2.5.0")
    assert "AW609" not in without_nvcc.run(PATH="/nonexistent", ARCHWRIGHT_JIT="strict").stderr
