"""FlashMLA's device files up to the boundary: the real CMakeLists.txt, run with a *recording* bisheng.

It notes its words and writes a text where an object should be. For the layouts of CANN without a CMake package our own
rules call it. Where there is one, CANN's CMake language does: the one here is made up from what is public of it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from archwright import ascend
from archwright.ascend import ascend_values, cann_for, cann_word, require_cann, toolkit_of
from archwright.cann import Cann, cann_at
from archwright.components import components
from archwright.errors import ArchwrightError
from archwright.targets import target_table

from . import canntree
from .canntree import LAYOUTS, Layout, activate, make_cann, record

no_cann, arm, good = canntree.no_cann, canntree.arm, canntree.good

TARGET = target_table().targets["ascend950"]
RECIPE = components()["flash_mla"].of(TARGET)
DEVICE = [unit.path for unit in RECIPE.units if unit.is_device]
TOOLS = Path(sys.executable).parent
#: What a language of CMake consists of. CANN's own has more; its rule is public.
LANGUAGE = {
    "asc-config.cmake": 'list(PREPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")\n',
    "CMakeDetermineASCCompiler.cmake": 'set(CMAKE_ASC_COMPILER_ENV_VAR "ASCC")\n'
    'configure_file("${CMAKE_CURRENT_LIST_DIR}/CMakeASCCompiler.cmake.in" '
    '"${CMAKE_PLATFORM_INFO_DIR}/CMakeASCCompiler.cmake" @ONLY)\n',
    "CMakeASCCompiler.cmake.in": 'set(CMAKE_ASC_COMPILER "@CMAKE_ASC_COMPILER@")\nset(CMAKE_ASC_COMPILER_LOADED 1)\n'
    "set(CMAKE_ASC_SOURCE_FILE_EXTENSIONS asc)\nset(CMAKE_ASC_OUTPUT_EXTENSION .o)\n"
    'set(CMAKE_ASC_COMPILER_ENV_VAR "ASCC")\n',
    "CMakeTestASCCompiler.cmake": 'set(CMAKE_ASC_COMPILER_WORKS TRUE CACHE INTERNAL "")\n',
    "CMakeASCInformation.cmake": 'set(CMAKE_INCLUDE_FLAG_ASC "-I")\nset(CMAKE_INCLUDE_SYSTEM_FLAG_ASC "-isystem ")\n'
    'set(CMAKE_ASC_COMPILE_OBJECT "<CMAKE_ASC_COMPILER> --asc-aicore-lang --npu-arch=${CMAKE_ASC_ARCHITECTURES} '
    '<DEFINES> <INCLUDES> <FLAGS> -o <OBJECT> -c <SOURCE>")\nset(CMAKE_ASC_INFORMATION_LOADED 1)\n',
}


class Build:
    """The folders of a build of FlashMLA's module whose upstream tree and environment are empty files and folders."""

    def __init__(self, folder: Path, cann: Cann) -> None:
        self.folder, self.log = folder, folder / "log"
        self.source, self.env = folder / "source", folder / "env"
        units = [unit.path for unit in RECIPE.units]
        for unit in units:
            (self.source / unit).parent.mkdir(parents=True, exist_ok=True)
            (self.source / unit).write_text("")
        (self.env / "torch" / "include").mkdir(parents=True)
        record(cann, self.log)
        request = type("Request", (), {"cann": cann, "target": TARGET, "environment": None})
        request.environment = type("Environment", (), {"runtime_site": self.env})
        values = {
            "ARCHWRIGHT_VENDOR": "huawei",
            "ARCHWRIGHT_CMAKE": Path(__file__).parent.parent / "cmake",
            "ARCHWRIGHT_SOURCE": self.source,
            "ARCHWRIGHT_UNITS": ";".join(units),
            "ARCHWRIGHT_ENVIRONMENT": self.env,
            "ARCHWRIGHT_TORCH": self.env / "torch",
            "ARCHWRIGHT_GUARD": folder / "guard",
            "Python_EXECUTABLE": sys.executable,
            **ascend_values(request, ["/usr/bin/env", "ARCHWRIGHT_LAUNCHED=1"]),
        }
        lines = []
        for name, value in values.items():
            text = ";".join(map(str, value)) if isinstance(value, list) else str(value)
            lines.append(f'set({name} [==[{text}]==] CACHE INTERNAL "" FORCE)\n')
        (folder / "cache.cmake").write_text("".join(lines))

    def configure(self, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [TOOLS / "cmake", "-C", self.folder / "cache.cmake", "-G", "Ninja", "-S", RECIPE.folder]
        command += ["-B", self.folder / "build", f"-DCMAKE_MAKE_PROGRAM={TOOLS / 'ninja'}"]
        env = {"PATH": os.environ["PATH"], **variables}
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=env, check=False)

    def ninja(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(TOOLS / "ninja"), "-C", str(self.folder / "build"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def objects(self) -> list[str]:
        targets = self.ninja("-t", "targets", "all").stdout
        return re.findall(r"(?m)^([^/]\S+\.asc\.o):", targets)

    def lines(self) -> list[list[str]]:
        """The command lines, with this test's folders named by what they are."""
        text = self.log.read_text().replace(str(self.source), "@source").replace(str(self.env), "@env")
        return [shlex.split(line) for line in text.splitlines()]


def made(layout: Layout, version: str, place: str, folder: Path) -> Cann:
    root = folder / "Ascend" / place
    root.parent.mkdir(parents=True)
    cann = cann_at(make_cann(root, version, "aarch64", layout), "a test")
    if cann.asc_cmake:
        for name, text in LANGUAGE.items():
            (cann.asc_cmake / name).write_text(text)
    return cann


OPTIONS = [
    *("-std=c++20", "-fPIC", "-Ofast", "-mllvm", "-enable-hiipu-vf-loop-unroll", "--cce-res-usage"),
    *("-Wno-unneeded-internal-declaration", "-Wno-microsoft-template", "-Wno-deprecated-declarations"),
    *("-mllvm", "-cce-aicore-dcpreload-args=false"),
    *("-ffile-prefix-map=@source=/src/flash_mla", "-ffile-prefix-map=@env=/env"),
]
DEFINED = {
    "-DFLASH_MLA_IS_BUILD_ON_ASCEND",
    "-DKERUTILS_IS_BUILD_ON_ASCEND",
    "-DTORCH_EXTENSION_NAME=npu",
    "-DTORCH_API_INCLUDE_EXTENSION_H",
}


@pytest.mark.parametrize(("layout", "version", "place"), LAYOUTS)
def test_the_command_lines_for_each_layout_of_cann(layout: Layout, version: str, place: str, tmp_path: Path) -> None:
    cann = made(layout, version, place, tmp_path)
    build = Build(tmp_path, cann)
    configured = build.configure()
    assert configured.returncode == 0, configured.stderr

    objects = build.objects()
    compiled = build.ninja(*objects)

    assert compiled.returncode == 0, compiled.stdout
    lines = build.lines()
    assert len(lines) == len(objects) == len(DEVICE) == 6
    sources = []
    for words in lines:
        assert words[:2] == ["launched", "bisheng"], "through the pool's launcher"
        assert "--asc-aicore-lang" in words and words.count("--npu-arch=dav-3510") == 1
        begin = words.index("-std=c++20")
        assert words[begin : begin + len(OPTIONS)] == OPTIONS
        assert {word for word in words if word.startswith("-D")} == DEFINED
        assert [word for word in words if word.startswith("-I")] == [
            "-I@source/csrc",
            "-I@source/csrc/3rdparty/kerutils/include",
        ]
        system = [words[i + 1] for i, word in enumerate(words) if word == "-isystem"]
        assert {str(folder) for folder in cann.includes} <= set(system)
        assert f"{cann.root}/aarch64-linux/asc/include" in system, "the processor's own folder"
        assert {"@env/torch_npu/include", "@env/torch/include"} <= set(system)
        sources.append(words[words.index("-c") + 1].removeprefix("@source/"))
    assert sorted(sources) == sorted(DEVICE)
    ways = {"8.x": "asc/csrc", "9.1": "CMakeFiles/extension_asc.dir", "9.2": "CMakeFiles/extension_asc.dir"}
    assert all(name.startswith(ways[layout]) for name in objects), "CANN's language where it has one"


def test_another_canns_language_is_not_taken(tmp_path: Path) -> None:
    layout, version, place = LAYOUTS[2]
    other = made(layout, version, place, tmp_path / "other")
    assert other.asc_cmake
    (other.asc_cmake / "asc-config.cmake").write_text('message(FATAL_ERROR "another CANN")\n')
    build = Build(tmp_path, made(layout, version, place, tmp_path))
    stray = {"ASC_DIR": str(other.asc_cmake), "ASC_ROOT": str(other.asc_cmake), "CMAKE_PREFIX_PATH": str(other.root)}

    configured = build.configure(**stray, ASCEND_HOME_PATH=str(other.root))

    assert configured.returncode == 0, configured.stderr


@pytest.mark.parametrize(("layout", "version", "place"), LAYOUTS)
def test_what_a_recording_compiler_makes_is_never_linked(
    layout: Layout, version: str, place: str, tmp_path: Path
) -> None:
    build = Build(tmp_path, made(layout, version, place, tmp_path))
    (build.env / "torch" / "include" / "torch").mkdir()
    (build.env / "torch" / "include" / "torch" / "extension.h").write_text("")
    for name in ("c10", "torch_cpu", "torch_python"):
        library(build.env / "torch" / "lib" / f"lib{name}.so")
    library(build.env / "torch_npu" / "lib" / "libtorch_npu.so")
    assert build.configure().returncode == 0

    linked = build.ninja()

    assert linked.returncode != 0
    assert "file format not recognized" in linked.stdout, linked.stdout
    assert not list((tmp_path / "build").rglob("npu.*.so"))


def library(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-shared", "-o", path, "-x", "c", "/dev/null"], check=True)


def test_without_cann_it_is_an_error_in_seconds(no_cann: Path) -> None:
    with pytest.raises(ArchwrightError) as caught:
        require_cann(TARGET)
    assert caught.value.code == "AW334"
    assert "--host-only" in caught.value.fix and "--lower-only" in caught.value.fix


def test_a_cann_that_is_too_old_or_not_whole_is_refused(
    no_cann: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    activate(make_cann(no_cann / "cann-9.1.0", "9.1.0", layout="9.1"), monkeypatch)
    with pytest.raises(ArchwrightError, match="AW336"):
        require_cann(TARGET)

    root = make_cann(no_cann / "cann-9.2.0")
    activate(root, monkeypatch)
    assert require_cann(TARGET).version == "9.2.0"
    cann_at(root, "").record.unlink()  # type: ignore[union-attr]
    with pytest.raises(ArchwrightError) as caught:
        require_cann(TARGET)
    assert (caught.value.code, "a record with its version" in caught.value.found) == ("AW338", True)


def test_a_compiler_that_does_not_run_is_refused(good: Path) -> None:
    with pytest.raises(ArchwrightError) as caught:
        ascend.compiler_facts(cann_at(good, "a test"))
    assert caught.value.code == "AW338"


def test_what_compiled_is_written_down(good: Path) -> None:
    cann = cann_at(good, "a test")
    assert cann.bisheng
    cann.bisheng.write_text("#!/bin/sh\necho 'bisheng version 1'\necho more\n")
    facts = ascend.compiler_facts(cann)
    assert (facts["version"], facts["processor"], facts["bisheng"]) == ("9.2.0", "aarch64", "bisheng version 1")
    assert len(facts["bisheng_sha256"]) == 64


@pytest.mark.parametrize(("version", "word"), [("9.2.0", "cann92"), ("9.2.0-beta.2", "cann92"), ("10.0.1", "cann100")])
def test_a_wheel_is_named_after_the_release(version: str, word: str) -> None:
    assert cann_word(version) == word


def test_each_wheel_says_what_made_its_code(good: Path) -> None:
    words = {
        name: toolkit_of(recipe := components()[name].of(TARGET), TARGET, None, cann_for(recipe, TARGET))
        for name in ("flash_mla", "tilelang_ops", "engine")
    }  # type: ignore[arg-type]
    assert words == {"flash_mla": "cann92", "tilelang_ops": "lowered", "engine": "npu213"}
