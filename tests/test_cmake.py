"""The CMake side, run by CMake itself with its project commands replaced by recorders (cases A5, A6, B5)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from archwright.components import Component, components
from archwright.targets import target_table

RECORDED = (
    *(
        "add_library",
        "add_custom_command",
        "add_custom_target",
        "enable_language",
        "find_package",
        "install",
        "project",
    ),
    *("python_add_library", "set_property", "set_target_properties"),
    *("target_compile_definitions", "target_compile_options"),
    *("target_include_directories", "target_link_libraries", "target_link_options", "target_precompile_headers"),
)
BUILT = ("deep_ep", "deep_gemm", "engine", "flash_mla")


class Configured:
    """What one component's CMakeLists.txt asks for: each command with its arguments."""

    def __init__(self, commands: list[list[str]]) -> None:
        self.commands = commands

    def calls(self, command: str, *first: str) -> list[list[str]]:
        return [words[1 + len(first) :] for words in self.commands if words[: 1 + len(first)] == [command, *first]]

    def arguments(self, command: str, *first: str) -> list[str]:
        return [word for words in self.calls(command, *first) for word in words]


@pytest.fixture(scope="module", params=BUILT)
def component(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def configured(component: str, tmp_path_factory: pytest.TempPathFactory) -> Configured:
    return configure(component, tmp_path_factory.mktemp(component))


def configure(component: str, folder: Path, recipe: Component | None = None, *settings: str) -> Configured:
    root = Path(__file__).resolve().parents[1]
    lists = root / "csrc" / component / "CMakeLists.txt"
    log = folder / "log"
    recorders = "".join(
        f'function({name})\nlist(JOIN ARGV "\x1f" words)\n'
        f'file(APPEND "{log}" "{name}\x1f${{words}}\\n")\nendfunction()\n'
        for name in RECORDED
    )
    units = ";".join(unit.path for unit in (recipe or components()[component]).units)
    script = folder / "run.cmake"
    script.write_text(
        f"{recorders}"
        f'set(ARCHWRIGHT_CMAKE "{root}/cmake")\nset(ARCHWRIGHT_SOURCE "/the/source")\nset(ARCHWRIGHT_UNITS "{units}")\n'
        'set(ARCHWRIGHT_GENCODES "arch=compute_100a,code=sm_100a;arch=compute_103a,code=sm_103a")\n'
        'set(ARCHWRIGHT_ENVIRONMENT "/env")\n'
        'set(ARCHWRIGHT_TORCH "/env/torch")\nset(ARCHWRIGHT_NCCL "/env/nccl")\nset(ARCHWRIGHT_GUARD "/build/guard")\n'
        f'set(CUDAToolkit_ROOT "/env/cuda")\nset(PROJECT_NAME {component})\n'
        f'set(CMAKE_BINARY_DIR "{folder}")\nset(CMAKE_CURRENT_SOURCE_DIR "{lists.parent}")\n'
        f'{"".join(f"set({setting})\n" for setting in settings)}include("{lists}")\n'
    )
    environment = {"PATH": os.environ["PATH"]}
    cmake = Path(sys.executable).with_name("cmake")
    run = subprocess.run([cmake, "-P", script], capture_output=True, text=True, cwd=folder, env=environment)
    assert run.returncode == 0, run.stderr
    return Configured([line.split("\x1f") for line in log.read_text().splitlines()])


def properties(configured: Configured) -> dict[str, str]:
    words = configured.arguments("set_target_properties", "extension", "PROPERTIES")
    return dict(zip(words[::2], words[1::2], strict=True))


def test_a6_the_language_standard_is_what_torch_wants(configured: Configured) -> None:
    found = properties(configured)
    assert found["CXX_STANDARD"] == found["CUDA_STANDARD"] == "20"
    assert found["CXX_STANDARD_REQUIRED"] == found["CUDA_STANDARD_REQUIRED"] == "ON"
    assert not [o for o in configured.arguments("target_compile_options", "extension") if "-std=" in o]


def test_a5_cccl_is_on_the_path_of_host_and_device_files(configured: Configured) -> None:
    assert "/env/cuda/include/cccl" in configured.arguments("target_include_directories", "archwright_cuda")
    assert "archwright::platform" in configured.arguments("target_link_libraries", "extension")


def test_b5_the_driver_is_a_stub_at_link_time_only(configured: Configured, component: str) -> None:
    options = " ".join(configured.arguments("target_link_options", "archwright_driver"))
    assert "/env/cuda/lib64/stubs/libcuda.so" in options
    linked = configured.arguments("target_link_libraries", "extension")
    assert ("archwright::driver" in linked) == components()[component].driver
    assert not [word for word in linked if "stubs" in word]


def test_b4_nccl_comes_from_the_root_that_is_given(configured: Configured, component: str) -> None:
    assert configured.arguments("target_link_libraries", "archwright_nccl") == [
        "INTERFACE",
        "/env/nccl/lib/libnccl.so.2",
    ]
    linked = configured.arguments("target_link_libraries", "extension")
    assert ("archwright::nccl" in linked) == bool(components()[component].nccl)


def test_b1_torch_comes_from_where_the_environment_says(configured: Configured) -> None:
    linked = [words[1] for words in configured.calls("target_link_libraries", "archwright_torch")]
    assert linked
    assert all(library.startswith("/env/torch/lib/lib") for library in linked)
    assert ["Torch"] not in [words[:1] for words in configured.calls("find_package")], "torch is never searched for"


def test_no_run_path_is_written(configured: Configured) -> None:
    assert properties(configured)["SKIP_BUILD_RPATH"] == "ON"
    assert not [
        word for words in configured.commands for word in words if "rpath" in word.lower() and "SKIP" not in word
    ]


def test_the_sources_are_the_recipes_units_in_the_source_tree(configured: Configured, component: str) -> None:
    words = configured.arguments("python_add_library", "extension")
    sources = [word for word in words if word.startswith("/")]
    assert sources == [f"/the/source/{unit.path}" for unit in components()[component].units]


def test_a2_exactly_the_gencodes_that_are_asked_for(configured: Configured) -> None:
    options = [o for o in configured.arguments("target_compile_options", "extension") if "gencode" in o]
    assert options == [
        "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode arch=compute_100a,code=sm_100a>",
        "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode arch=compute_103a,code=sm_103a>",
    ]


def test_h2_paths_of_the_build_machine_are_mapped_away(configured: Configured, component: str) -> None:
    options = configured.arguments("target_compile_options", "extension")
    for path in ("/the/source", "/env"):
        for language in ("CXX>:-", "CUDA>:-Xcompiler=-"):
            assert [o for o in options if f"{language}ffile-prefix-map={path}=" in o], (path, language)
    assert not [o for o in options if "lineinfo" in o or "source-in-ptx" in o]


def test_h2_names_of_device_code_do_not_depend_on_path_and_process(configured: Configured, component: str) -> None:
    device = [unit.path for unit in components()[component].units if unit.is_device]
    calls = configured.calls("set_property")
    assert [words[:4] for words in calls] == [
        ["SOURCE", f"/the/source/{p}", "PROPERTY", "COMPILE_OPTIONS"] for p in device
    ]
    for path, (*_, original, include, header, anchor) in zip(device, calls, strict=True):
        assert original == f"-Xcudafe=--orig_src_path_name=/src/{component}/{path}"
        assert include == "-include" and header.endswith("/cmake/anchor.cuh")
        assert anchor == "-DARCHWRIGHT_ANCHOR=archwright_anchor_" + re.sub(r"\W", "_", path)
    assert len({words[-1] for words in calls}) == len(device), "two equal names would not link"


def test_h2_symbols_are_gone_before_the_build_id_is_computed(configured: Configured) -> None:
    assert {"LINKER:--strip-all", "LINKER:--build-id=sha1"} <= set(configured.arguments("target_link_options"))


def test_the_module_lands_where_its_name_says(configured: Configured, component: str) -> None:
    folder, _, name = str(components()[component].extension).rpartition(".")
    assert properties(configured)["OUTPUT_NAME"] == name
    assert configured.arguments("install", "TARGETS", "extension")[-1] == folder.replace(".", "/")
    assert f"TORCH_EXTENSION_NAME={name}" in configured.arguments("target_compile_definitions", "extension")


def test_the_import_guard_is_installed_into_the_package(configured: Configured, component: str) -> None:
    files = configured.arguments("install", "FILES")
    assert files[:4] == [
        "/build/guard/_archwright.py",
        "/build/guard/_archwright.json",
        "DESTINATION",
        components()[component].package,
    ]


def test_no_compile_is_told_how_many_threads_to_use(configured: Configured) -> None:
    """D1: the plan decides."""
    assert not [o for o in configured.arguments("target_compile_options", "extension") if "threads" in o]


def test_c2_nothing_is_downloaded_and_no_git_is_called(root: Path) -> None:
    text = "\n".join(
        p.read_text() for p in [root / "CMakeLists.txt", *root.glob("cmake/*"), *root.glob("csrc/*/CMakeLists.txt")]
    )
    for word in ("FetchContent", "ExternalProject", "file(DOWNLOAD", "find_package(Git", "GIT_", "CPM"):
        assert word not in text


def test_source_lists_are_written_out_and_never_globbed(root: Path) -> None:
    for path in [root / "CMakeLists.txt", *root.glob("cmake/*"), *root.glob("csrc/*/CMakeLists.txt")]:
        assert not re.search(r"\bfile\s*\(\s*GLOB", path.read_text())


def test_without_the_backend_it_says_how_to_build(root: Path, tmp_path: Path) -> None:
    script = tmp_path / "run.cmake"
    script.write_text(f'include("{root}/cmake/Archwright.cmake")\n')
    run = subprocess.run([Path(sys.executable).with_name("cmake"), "-P", script], capture_output=True, text=True)
    assert run.returncode != 0
    words = " ".join(run.stderr.split())
    assert "pip wheel" in words
    assert "archwright build" in words


@pytest.mark.parametrize("name", ["engine", "flash_mla"])
def test_ascends_host_files_see_torch_npu_and_no_cuda(name: str, tmp_path: Path) -> None:
    recipe = components()[name].of(target_table().targets["ascend950"]).host_only
    settings = ("ARCHWRIGHT_VENDOR huawei", "ARCHWRIGHT_HOST_ONLY 1", "ARCHWRIGHT_TORCH_NPU /env/torch_npu")
    found = configure(name, tmp_path, recipe, *settings)

    assert found.calls("add_library", "extension", "OBJECT")
    assert not found.calls("python_add_library")
    assert not found.calls("install", "TARGETS")
    assert "/env/torch_npu/include/third_party/acl/inc" in found.arguments("target_include_directories")
    assert not [word for words in found.commands for word in words if "/env/cuda" in word or "torch_cuda" in word]
    defined = found.arguments("target_compile_definitions", "extension")
    assert {"WITH_NPU", "FLASH_MLA_IS_BUILD_ON_ASCEND"} & set(defined)
    assert "FLASH_MLA_IS_BUILD_ON_CUDA" not in defined
