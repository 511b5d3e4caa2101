"""The reader of Ascend device code against code that bisheng made: torch_npu's wheel carries two files of it."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from archwright.cann import guard_facts
from archwright.elf import HIIPU, Elf, embedded_elfs
from archwright.kernels import read_device_code
from archwright.targets import target_table

pytestmark = pytest.mark.wheels


@pytest.fixture(scope="module")
def library() -> Path:
    found = (
        Path("~/.cache/archwright/envs")
        .expanduser()
        .glob("ascend950-*/runtime/lib/python3.12/site-packages/torch_npu/lib/libtorch_npu.so")
    )
    return next(found, None) or pytest.skip("needs `archwright env create ascend950`")


def test_entry_symbols_of_torch_npus_own_device_code(library: Path) -> None:
    code = read_device_code({"libtorch_npu.so": library.read_bytes()})
    assert [hex(found.flags) for found in code.ascend] == ["0x940000", "0x9a0000"]
    assert all(not found.relocatable and found.arch == "unknown" for found in code.ascend)
    assert code.inventory == {"unknown": ["dvm_mix_aic", "dvm_mix_aiv"]}
    for found in code.ascend:
        assert [(kernel.core, kernel.arguments) for kernel in found.kernels] == [("cube", 16), ("vector", 16)]


def test_sections_and_symbols_are_those_that_others_read(library: Path, tmp_path: Path) -> None:
    data = library.read_bytes()
    host = Elf(data)
    places = [section for section in host.sections if section.name in (".rodata", ".data")]
    files = [file for place in places for file in embedded_elfs(host.bytes_of(place), HIIPU)]
    assert len(files) == 2
    for file in files:
        path = tmp_path / "device.o"
        path.write_bytes(file)
        said = subprocess.run(["readelf", "-hW", str(path)], stdout=subprocess.PIPE, text=True, check=True).stdout
        assert "0x1029" in said
        with path.open("rb") as stream:
            reference = ELFFile(stream)
            elf = Elf(file)
            assert [section.name for section in elf.sections] == [s.name for s in reference.iter_sections()]
            tables = [s for s in reference.iter_sections() if isinstance(s, SymbolTableSection)]
            names = {"STB_LOCAL": 0, "STB_GLOBAL": 1, "STB_WEAK": 2}
            assert [(s.binding, s.value, s.size) for s in elf.symbols()] == [
                (names[s["st_info"]["bind"]], s["st_value"], s["st_size"]) for t in tables for s in t.iter_symbols()
            ]


def test_g3_the_guard_asks_for_what_torch_npu_needs_of_cann(library: Path) -> None:
    """Of libtorch_npu.so and what it brings: all that is neither the system's, torch's nor its own."""
    floor = target_table().targets["ascend950"].cann
    assert floor is not None
    files = [library, library.with_name("libtensorpipe.so")]
    own = {path.name for folder in ("torch_npu", "torch") for path in (library.parents[2] / folder / "lib").iterdir()}
    needed = dict.fromkeys(name for path in files for name in Elf(path.read_bytes()).dynamic().needed)
    system = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so\.\d|ld-linux-.*")
    assert guard_facts(floor)["libraries"] == [n for n in needed if n not in own and not system.fullmatch(n)]


def test_g3_the_real_torch_without_cann_fails_with_the_guards_words(library: Path, root: Path, tmp_path: Path) -> None:
    """`import deepinfer, torch`: torch loads torch_npu by itself, and the loader's own words name no CANN."""
    floor = target_table().targets["ascend950"].cann
    assert floor is not None
    facts = {"distribution": "pkg", "version": "1", "package": "pkg", "torch": None, "torch_npu": "2.13.0rc1"}
    facts |= {"python": "3.12", "processor": platform.machine(), "cann": guard_facts(floor)}
    package = tmp_path / "pkg"
    package.mkdir()
    shutil.copy(root / "csrc" / "guard" / "_archwright.py", package)
    (package / "_archwright.json").write_text(json.dumps(facts | {"nccl": None, "driver": False, "pack": None}))
    (package / "__init__.py").write_text("from . import _archwright\n_archwright.check_before('pkg._C')\n")
    python = library.parents[5] / "bin" / "python"
    run = subprocess.run(
        [python, "-c", "import pkg, torch"], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert "RuntimeError: Failed to load the backend extension: torch_npu" in run.stderr
    assert "AW611: CANN's libraries cannot be loaded\n  found:  libhccl.so: cannot open" in run.stderr
    assert "set_env.sh" in run.stderr
