"""A source pack's own command, up to the boundary: the compiler here is a *recording* one, which makes nothing.

The real TileLang of the locked environment writes the command lines; marked `wheels`.
"""

from __future__ import annotations

import json
import platform
import subprocess
import zipfile
from pathlib import Path

import pytest

from archwright.cann import cann_at
from archwright.elf import Damaged
from archwright.environment import Environment, create_environment
from archwright.lowering import compile_pack
from archwright.packing import collect
from archwright.targets import target_table

from .canntree import LAYOUTS, Layout, make_cann, record
from .test_ascsource import GOOD

pytestmark = pytest.mark.wheels

PACKAGE = "archwright_aot_tilelang_ops"
ENTRY = "ascend/0123"
OPTIONS = ["-O2", "-fPIC", "-std=c++20", "-mllvm", "-cce-aicore-dcpreload-args=false", "--npu-arch=dav-3510"]


@pytest.fixture(scope="module")
def environment() -> Environment:
    return create_environment(target_table().targets["ascend950"])


def made_pack(folder: Path, source: str = GOOD) -> Path:
    """A source pack of one kernel, collected as a build does it, as a wheel."""
    build, entry = folder / "build", folder / "jit" / "process" / ENTRY
    (build / "operations").mkdir(parents=True)
    entry.mkdir(parents=True)
    (entry / "kernel.asc").write_text(source)
    options = [*OPTIONS, "-I@templates@"]
    linker = ["-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file"]
    facts = {"compile_format": "aibin", "linker_options": linker, "options": options}
    facts |= {"target_arch": "dav-3510", "target_kind": "ascend"}
    (entry / "build.json").write_text(json.dumps({"compiler": facts, "symbols": ["copy_kernel"]}))
    case = {"shape": {"tokens": 1}, "outcome": "lowered", "reason": "", "kernels": [ENTRY]}
    result = [{"operation": "copy", "cases": [case], "kernels": [ENTRY]}]
    (build / "operations" / "process.json").write_text(json.dumps(result))
    pack = {"jit": "lowered", "processes": ["process"], "calls": {"copy": ["module.copy"]}}
    pack |= {"headers": ["tl_templates/ascend/common.h"], "libraries": {"tilelang": "0.1.15"}}
    (build / "pack.json").write_text(json.dumps(pack))
    collect(build, folder / "jit", PACKAGE)
    wheel = folder / f"{PACKAGE}-2.1.0+lowered.ascend950.ascend950pr-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted((build / "pack").rglob("*")):
            archive.write(path, path.relative_to(build / "pack"))
    return wheel


@pytest.mark.parametrize(("layout", "version", "place"), LAYOUTS)
def test_the_command_lines_for_each_layout_of_cann(
    layout: Layout,
    version: str,
    place: str,
    environment: Environment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "Ascend" / place).parent.mkdir(parents=True)
    cann = cann_at(make_cann(tmp_path / "Ascend" / place, version, platform.machine(), layout), "a test")
    assert cann.bisheng and cann.ld_lld
    log = tmp_path / "log"
    record(cann, log)
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("BISHENG_HOME", raising=False)

    status = compile_pack(made_pack(tmp_path), environment, cann)

    compiled, linked = (line.split() for line in log.read_text().splitlines())
    assert compiled[:7] == ["bisheng", *OPTIONS] and compiled[8] == "--cce-aicore-only"
    templates = Path(compiled[7].removeprefix("-I"))
    assert templates.resolve() == (environment.runtime_site / "tilelang" / "src").resolve()
    assert compiled[9].endswith("/tl_kernel.asc")
    assert linked[:7] == ["ld.lld", "-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file", compiled[-1]]
    assert status == 5, "what a recorder makes is no kernel"
    assert "no ELF file" in capfd.readouterr().out
    assert not list((tmp_path / "cache").rglob("*.aibin"))


def test_without_cann_it_says_what_to_do(environment: Environment, tmp_path: Path) -> None:
    with zipfile.ZipFile(made_pack(tmp_path)) as archive:
        archive.extractall(tmp_path / "installed")
    run = subprocess.run(
        [environment.runtime / "bin" / "python", "-m", PACKAGE],
        env={"PATH": "/nonexistent", "PYTHONPATH": str(tmp_path / "installed"), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 4
    assert "set_env.sh" in run.stderr


def test_a_source_that_does_not_pass_its_checks_makes_no_pack(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="no entry symbol"):
        made_pack(tmp_path, "int x;\n")


def test_a_source_has_the_entry_symbols_that_tilelang_will_ask_for(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match=r"entry symbols \['another'\], TileLang will ask for \['copy_kernel'\]"):
        made_pack(tmp_path, GOOD.replace("copy_kernel", "another"))
