"""Inspection of wheels for Ascend: what fails, what is unknown, and that unknown is never shown as passed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from archwright import inspection
from archwright.cli import main
from archwright.components import Component, components
from archwright.gates import Verdict
from archwright.inspection import Inspection, inspect_wheel
from archwright.report import html_page

from .fuzz.builders import PROGBITS, FakeEntry, Part, ascend_kernels, cce, container, cubin, entry, library

VERSION = "1.0+cann92.ascend950"
NAME = f"tiny-{VERSION}-cp312-cp312-manylinux_2_5_x86_64.whl"
INFO = f"tiny-{VERSION}.dist-info"
MODULE = "tiny/_C.cpython-312-x86_64-linux-gnu.so"
NEEDED = ["libc.so.6", "libascendcl.so"]
RECORDED = b"recorded by a stand-in, no compiler ran: bisheng -O2 --npu-arch=dav-3510\n"
#: The one way in which a library says which chip its code is for.
JUDGED = Part(".ascend.kernel.ascend950pr_9599.ops", PROGBITS, ascend_kernels((1, cce())))

Make = Callable[..., Path]


def module(*parts: Part, needed: list[str] = NEEDED) -> bytes:
    return library(needed, versions={"libc.so.6": ["GLIBC_2.2.5"]}, parts=parts)


@pytest.fixture
def make(
    tmp_path: Path,
    make_recipe: Callable[..., Component],
    make_wheel: Make,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Make:
    """A wheel of a component with device code, with these members in place of its own."""
    recipe = make_recipe("c" * 64)
    device = replace(recipe, units=(replace(recipe.units[0], path="csrc/a.asc"),))

    def write(
        members: dict[str, bytes],
        component: Component = device,
        target: str = "ascend950",
        name: str = NAME,
        without: str = "",
    ) -> Path:
        monkeypatch.setattr(inspection, "components", lambda: {"tiny": component})
        record = {"component": "tiny", "target": target, "toolchain": {"cann": {"version": "9.2.0-beta.2"}}}
        info = f"{'-'.join(name.split('-')[:2])}.dist-info"
        files = {f"{info}/archwright.json": json.dumps(record).encode(), **members}
        return make_wheel(tmp_path / name, files, without=without)

    return write


def failed(path: Path) -> dict[str, tuple[str, ...]]:
    return {f.code: f.problems for f in inspect_wheel(path).findings if f.verdict is Verdict.FAILED}


def unknown(found: Inspection) -> dict[str, tuple[str, ...]]:
    return {f.code: f.unknown for f in found.findings if f.unknown}


def test_code_that_says_its_chip_passes_and_still_says_what_nobody_verified(make: Make) -> None:
    found = inspect_wheel(make({MODULE: module(JUDGED)}))
    assert found.verdict is Verdict.PASSED
    data = found.as_dict()
    assert data["device_compile"] == "not verified here"
    assert "device_compile: not verified here" in data["not_verified"]
    assert data["inventory"] == {"dav-3510": ["run"]}
    (code,) = data["ascend"]
    assert (code["member"], code["soc"], code["kernels"][0]["core"]) == (MODULE, "ascend950pr_9599", "vector")


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({MODULE: module(), "tiny/kernel.aibin": cce()}, "tiny/kernel.aibin: for which chip its code is"),
        ({MODULE: module(Part(".aicore_binary", PROGBITS, cce()))}, "e_flags 0x990000"),
        ({MODULE: module(), "tiny/d.so": module(JUDGED)}, "device code: unknown"),
    ],
)
def test_what_cannot_be_judged_is_unknown_and_not_passed(
    members: dict[str, bytes], says: str, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make(members)
    found = inspect_wheel(path)
    assert found.verdict is Verdict.UNKNOWN
    assert says in "\n".join(unknown(found)["AW424"])
    assert found.as_dict()["passed"] is False

    assert main(["inspect", str(path)]) == 0
    last = capsys.readouterr().out.splitlines()[-2]
    assert "unknown AW424: not verified here (13 gates); device_compile: not verified here" in last
    assert "passed" not in last

    assert main(["inspect", "--json", str(path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["passed"], told["wheels"][0]["verdict"]) == (False, "unknown")

    page = html_page([found])
    assert 'class="unknown">unknown AW424: not verified here' in page
    assert "device_compile: not verified here" in page


def test_g4_every_entry_symbol_is_listed(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    code = cce([FakeEntry("scatter_mix_aic", kernel_type=4), FakeEntry("scatter_mix_aiv", arguments=24)])
    path = make({MODULE: module(), "tiny/kernel.aibin": code})
    main(["inspect", str(path)])
    out = capsys.readouterr().out
    assert "scatter_mix_aic" in out and "mix, cube leads" in out
    assert "entry symbols of 1 CCE ELF files: 2 for unknown" in out
    assert f"device code: unknown  {MODULE}" in out


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({MODULE: module()}, "no Ascend device code at all"),
        ({MODULE: module(JUDGED), "tiny/k.aibin": cce([FakeEntry("run", binding=0)])}, "tiny/k.aibin: no entry symbol"),
        ({MODULE: module(JUDGED), "tiny/k.aibin": cce(kind=1)}, "tiny/k.aibin: not linked"),
        ({MODULE: module(JUDGED), "tiny/k.aibin": library()}, "an ELF file for x86_64, not for Ascend"),
        (
            {MODULE: module(Part(".ascend.kernel.ascend910b1.ops", PROGBITS, ascend_kernels((1, cce()))))},
            "device code for ascend910b1; dav-3510 expected",
        ),
        ({MODULE: module(JUDGED, needed=["libascendcl.so", "libcudart.so.13"])}, "needs libcudart.so.13 of CUDA"),
    ],
)
def test_device_code_that_is_not_what_the_wheel_promises(members: dict[str, bytes], says: str, make: Make) -> None:
    problems = failed(make(members))
    assert list(problems) == ["AW424"]
    assert says in problems["AW424"][0]


SOURCE = "tiny/root/ascend/0123/kernel.asc"
PACK = "tiny-1.0+lowered.ascend950.ascend950pr-py3-none-any.whl"


def test_a_source_pack_is_unknown_until_a_compiler_has_seen_it(make: Make) -> None:
    found = inspect_wheel(make({SOURCE: b"void f();\n"}, component=source_pack(), name=PACK, without=MODULE))
    assert found.verdict is Verdict.UNKNOWN, failed(found.subject.wheel.path)
    assert unknown(found) == {"AW424": ("1 lowered sources: whether they compile",)}
    assert found.as_dict()["device_compile"] == "not verified here"


@pytest.mark.parametrize("name", ["tiny/kernel.aibin", "tiny/_C.so"])
def test_a_source_pack_has_no_binary(name: str, make: Make) -> None:
    data = cce() if name.endswith("aibin") else library()
    path = make({SOURCE: b"void f();\n", name: data}, component=source_pack(), name=PACK)
    assert "binaries in a source pack, which was never compiled" in failed(path)["AW424"]


def source_pack() -> Component:
    known = {"distribution": "tiny", "package": "tiny", "version": "1.0", "wheel_expect": (), "editions": {}}
    return replace(components()["tilelang_ops"], name="tiny", **known)


def test_an_elf_file_for_another_machine_is_no_device_code(make: Make) -> None:
    other = bytearray(cce())
    other[18:20] = (243).to_bytes(2, "little")
    assert (
        "for machine-243, not for Ascend" in failed(make({MODULE: module(JUDGED), "tiny/k": bytes(other)}))["AW424"][0]
    )


@pytest.mark.parametrize("name", [MODULE, "tiny/kernel.aibin", "tiny/a.o", "tiny/libx.so.1"])
def test_what_a_recording_compiler_left_is_never_accepted(
    name: str, make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make({MODULE: module(JUDGED), name: RECORDED})
    assert "begins with b'recorded by a stand-in, " in failed(path)["AW424"][0]
    assert main(["inspect", str(path)]) == 1
    assert "failed AW424" in capsys.readouterr().out


def test_recorded_words_inside_a_section_for_device_code_cannot_be_read(make: Make) -> None:
    path = make({MODULE: module(Part(".aicore_binary", PROGBITS, RECORDED))})
    assert main(["inspect", str(path)]) == 1


def test_cuda_code_in_a_wheel_for_ascend_fails(make: Make) -> None:
    fatbin = Part(".nv_fatbin", PROGBITS, container(entry(cubin())))
    assert "a cubin for sm_100a" in failed(make({MODULE: module(JUDGED, fatbin)}))["AW411"][0]


def test_ascend_code_in_a_wheel_for_cuda_fails(
    tmp_path: Path, make: Make, make_wheel: Make, make_recipe: Callable[..., Component]
) -> None:
    make({}, component=make_recipe("c" * 64))
    path = make_wheel(tmp_path / "tiny-1.0+cu132.sm100-cp312-cp312-manylinux_2_34_x86_64.whl", {"tiny/k.aibin": cce()})
    assert failed(path) == {"AW424": ("tiny/k.aibin: Ascend device code in a wheel for sm100",)}
    assert "device_compile" not in inspect_wheel(path).as_dict()


def test_g5_a_wheel_without_its_files_fails(make: Make, make_recipe: Callable[..., Component]) -> None:
    recipe = replace(make_recipe("c" * 64), wheel_expect=("tiny/*.so", "tiny/kernels/*.aibin"))
    assert failed(make({MODULE: module()}, component=recipe)) == {"AW401": ("no file tiny/kernels/*.aibin",)}


def test_a_wheel_says_which_cann_made_it(make: Make) -> None:
    path = make({MODULE: module(JUDGED)}, name=NAME.replace("cann92", "cann93"))
    assert failed(path) == {"AW422": ("archwright.json says CANN 9.2.0-beta.2, the version says cann93",)}


def test_a_host_only_wheel_is_unknown_too(make: Make, make_recipe: Callable[..., Component]) -> None:
    found = inspect_wheel(make({MODULE: module()}, component=make_recipe("c" * 64)))
    assert found.verdict is Verdict.UNKNOWN
    assert unknown(found)["AW424"][0].startswith(f"{MODULE}: device code: unknown (needs libascendcl.so")


def test_a_wheel_whose_record_names_ascend_says_so_whatever_its_name(
    tmp_path: Path, make: Make, make_wheel: Make, make_recipe: Callable[..., Component]
) -> None:
    make({}, component=make_recipe("c" * 64))
    info = "tiny-1.0+cu132.sm100.dist-info"
    record = json.dumps({"component": "tiny", "target": "ascend950"}).encode()
    path = make_wheel(
        tmp_path / "tiny-1.0+cu132.sm100-cp312-cp312-manylinux_2_34_x86_64.whl", {f"{info}/archwright.json": record}
    )
    assert inspect_wheel(path).as_dict()["device_compile"] == "not verified here"
    assert "AW422" in failed(path)
