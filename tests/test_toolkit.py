"""The toolkit view and the checks of the toolchain: cases A1, A5 and B5."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

from archwright.errors import ArchwrightError, Exit
from archwright.targets import target_table
from archwright.toolkit import ToolkitParts, check_nvcc_floor, make_toolkit_view, nvcc_release, toolkit_releases

NVCC_SAYS = """\
nvcc: NVIDIA (R) Cuda compiler driver
Copyright (c) 2005-2026 NVIDIA Corporation
Cuda compilation tools, release {release}, V{version}
"""


@pytest.fixture
def packages(tmp_path: Path) -> Callable[..., Path]:
    """A folder as CUDA's packages lay it out: `lib`, versioned libraries only, no driver stub."""

    def make(nvcc: str = "13.2.86", runtime: int = 13020, driver: int = 13020) -> Path:
        cuda = tmp_path / "nvidia" / "cu13"
        for folder in ("bin", "include/cccl/cuda/std", "nvvm", "lib"):
            (cuda / folder).mkdir(parents=True)
        words = NVCC_SAYS.format(release=".".join(nvcc.split(".")[:2]), version=nvcc)
        (cuda / "bin" / "nvcc").write_text(f"#!/bin/sh\ncat <<'END'\n{words}END\n")
        (cuda / "bin" / "nvcc").chmod(0o755)
        (cuda / "include" / "cuda_runtime_api.h").write_text(f"/* x */\n#define CUDART_VERSION  {runtime}\n")
        (cuda / "include" / "cuda.h").write_text(f"#define CUDA_VERSION {driver}\n")
        (cuda / "include" / "cccl" / "cuda" / "std" / "utility").touch()
        for library in ("libcudart.so.13", "libcublasLt.so.13", "libnvrtc.so.13.2", "libcudadevrt.a"):
            (cuda / "lib" / library).write_text(library)
        return cuda

    return make


def test_the_view_looks_like_a_toolkit(packages: Callable[..., Path], tmp_path: Path, gcc: str) -> None:
    cuda, view = packages(), tmp_path / "view"

    make_toolkit_view(ToolkitParts.below(cuda), view, Path(gcc))

    for name in ("libcudart.so", "libcudart.so.13", "libcublasLt.so", "libnvrtc.so", "libcudadevrt.a"):
        assert (view / "lib64" / name).is_file()
        assert (view / "lib" / name).is_file()
    assert (view / "lib64" / "libcudart.so").read_text() == "libcudart.so.13"
    assert (view / "bin" / "nvcc").is_file()
    assert (view / "include" / "cccl" / "cuda" / "std" / "utility").is_file(), "A5: cuda/std is there"
    assert not (cuda / "lib64").exists(), "the packages themselves are left alone"
    assert sorted(p.name for p in (cuda / "lib").iterdir())[-1] == "libnvrtc.so.13.2"


def test_b5_a_stub_of_the_driver_is_there_at_link_time(packages: Callable[..., Path], tmp_path: Path, gcc: str) -> None:
    view = tmp_path / "view"

    make_toolkit_view(ToolkitParts.below(packages()), view, Path(gcc))

    stub = view / "lib64" / "stubs" / "libcuda.so"
    with stub.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        tags = {tag.entry.d_tag: tag for tag in dynamic.iter_tags()}
    assert tags["DT_SONAME"].soname == "libcuda.so.1"
    assert "DT_NEEDED" not in tags, "it needs nothing itself"


def test_b5_what_is_linked_with_the_stub_needs_the_real_driver(
    packages: Callable[..., Path], tmp_path: Path, gcc: str
) -> None:
    view, module = tmp_path / "view", tmp_path / "module.so"
    make_toolkit_view(ToolkitParts.below(packages()), view, Path(gcc))
    stubs = view / "lib64" / "stubs"

    subprocess.run(
        [gcc, "-shared", "-x", "c", "/dev/null", "-o", module, f"-L{stubs}", "-Wl,--no-as-needed", "-lcuda"], check=True
    )

    with module.open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(dynamic, DynamicSection)
        needed = [tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"]
        paths = [tag for tag in dynamic.iter_tags() if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")]
    assert "libcuda.so.1" in needed
    assert paths == []


def test_nvcc_is_asked_for_its_full_version(packages: Callable[..., Path]) -> None:
    assert nvcc_release(packages(nvcc="13.2.86") / "bin" / "nvcc") == "13.2.86"


def test_one_release_throughout_is_fine(packages: Callable[..., Path]) -> None:
    assert set(toolkit_releases(packages()).values()) == {"13.2"}


@pytest.mark.parametrize(
    "parts",
    [
        {"nvcc": "13.3.73"},
        {"runtime": 13000},
        {"driver": 13000},
        {"runtime": 12090, "driver": 12090},
        {"nvcc": "12.9.1"},
    ],
)
def test_aw311_mixed_releases_are_refused(parts: dict[str, object], packages: Callable[..., Path]) -> None:
    """Trap 1: torch's CUDA 13.0 packages in the same folder as a 13.2 toolchain."""
    with pytest.raises(ArchwrightError) as caught:
        toolkit_releases(packages(**parts))

    assert caught.value.code == "AW311"
    assert caught.value.exit is Exit.UNFIT
    assert "13.2" in caught.value.found or "13.3" in caught.value.found
    assert "nvcc" in caught.value.found


def test_aw311_headers_without_a_version_are_not_taken_on_trust(packages: Callable[..., Path]) -> None:
    cuda = packages()
    (cuda / "include" / "cuda.h").write_text("/* nothing */")
    with pytest.raises(ArchwrightError, match="AW311"):
        toolkit_releases(cuda)


@pytest.mark.parametrize("found", ["12.4.1", "12.7.99", "11.8.89"])
def test_a1_an_nvcc_that_does_not_know_the_architecture_is_aw305(found: str) -> None:
    floors = {f"gencode {g.name}": str(g.nvcc) for g in target_table().targets["sm100"].gencodes}

    with pytest.raises(ArchwrightError) as caught:
        check_nvcc_floor(found, floors)

    assert caught.value.code == "AW305"
    assert caught.value.exit is Exit.UNFIT
    assert found in caught.value.found
    assert "sm_100a" in caught.value.needed


def test_a1_each_gencode_has_its_own_floor() -> None:
    floors = {f"gencode {g.name}": str(g.nvcc) for g in target_table().targets["sm100"].gencodes}

    with pytest.raises(ArchwrightError, match="sm_103a"):
        check_nvcc_floor("12.8.61", floors)
    assert check_nvcc_floor("12.9.0", floors) is None


def test_a1_the_floor_of_a_component_counts_too() -> None:
    with pytest.raises(ArchwrightError, match="flash_mla"):
        check_nvcc_floor("13.0.48", {"gencode sm_100a": "12.8", "flash_mla": "13.1"})


numbers = st.lists(st.integers(0, 30), min_size=2, max_size=2)


@given(numbers, st.integers(0, 999), numbers)
def test_releases_are_compared_as_numbers(have: list[int], patch: int, need: list[int]) -> None:
    found = f"{have[0]}.{have[1]}.{patch}"
    floor = f"{need[0]}.{need[1]}"
    if have >= need:
        assert check_nvcc_floor(found, {"someone": floor}) is None
    else:
        with pytest.raises(ArchwrightError):
            check_nvcc_floor(found, {"someone": floor})
