"""Each gate on a wheel that passes, doctored in one way (cases A4, B6, F2, F4, G5, H1, H2)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archwright.budget import Limits
from archwright.components import Component
from archwright.cubin import Cubin
from archwright.elf import Dynamic
from archwright.errors import CATALOGUE
from archwright.gates import GATES, Finding, Subject, Verdict, gate_error, pass_gates
from archwright.kernels import Binary, DeviceCode, KernelFacts, Ptx
from archwright.targets import target_table
from archwright.wheelfile import read_wheel

SM100 = target_table().targets["sm100"]
MODULE = "tiny/_C.cpython-312-x86_64-linux-gnu.so"
PLATFORM = "manylinux_2_34_x86_64"
TAG = f"cp312-cp312-{PLATFORM}"
INFO = "tiny-1.0+cu132.sm100.dist-info"
ARCHES = ("sm_100a", "sm_103a")


def kernel(arch: str, name: str = "_Z3runPf", **figures: Any) -> KernelFacts:
    values = {"registers": 168, "stack": 0, "spill_stores": 0, "spill_loads": 0, **figures}
    return KernelFacts(
        MODULE, name, arch, "13.2.86", local=0, shared=1024, constants={0: 896}, max_threads=384, code=512, **values
    )


def cubin(arch: str, toolkit: str = "13.2.86", relocatable: bool = False) -> Cubin:
    return Cubin(arch, toolkit, (), relocatable, ())


def entry(arch: str, section: str = ".nv_fatbin", **more: Any) -> tuple[str, str, Cubin, int, str]:
    return MODULE, section, cubin(arch, **more), 4096, ""


CODE = DeviceCode(
    binaries=(Binary(MODULE, "x86_64", Dynamic(("libc.so.6", "libcudart.so.13"), (), ("GLIBC_2.34",))),),
    cubins=tuple(map(entry, ARCHES)),
    ptx=(),
    kernels=tuple(map(kernel, ARCHES)),
)
BUDGET = {("13.2.86", arch): {"_Z3runPf": Limits(168, 0, 0, 0)} for arch in ARCHES}


@pytest.fixture
def make(
    tmp_path: Path, make_recipe: Callable[..., Component], make_wheel: Callable[..., Path]
) -> Callable[..., Subject]:
    """A subject that passes: a small wheel on disk, and device code as if read from its module."""
    recipe = make_recipe("c" * 64)
    device = replace(recipe, units=(replace(recipe.units[0], path="csrc/a.cu"),))

    def write(
        code: DeviceCode = CODE,
        members: dict[str, bytes] | None = None,
        record: dict[str, Any] | None = None,
        tag: str = TAG,
        tamper: bytes = b"",
        component: Component = device,
        **fields: Any,
    ) -> Subject:
        files = dict(members or {})
        if record:
            files[f"{INFO}/archwright.json"] = json.dumps(record).encode()
        path = make_wheel(tmp_path / f"tiny-1.0+cu132.sm100-cp312-cp312-{PLATFORM}.whl", files, tag=tag, tamper=tamper)
        values = {"target": SM100, "arches": ARCHES, "toolkit": "cu132", "budget": BUDGET, **fields}
        return Subject(wheel=read_wheel(path), code=code, component=component, **values)

    return write


def failed(subject: Subject) -> dict[str, tuple[str, ...]]:
    return {finding.code: finding.problems for finding in pass_gates(subject) if finding.verdict is Verdict.FAILED}


def test_the_undoctored_wheel_passes_every_gate(make: Callable[..., Subject]) -> None:
    findings = pass_gates(make())
    assert [finding.code for finding in findings] == [gate.code for gate in GATES]
    assert [finding for finding in findings if not finding.passed] == []
    assert gate_error(findings, "tiny.whl") is None
    assert all(finding.verdict is Verdict.PASSED for finding in findings)


def test_every_gate_has_a_code_of_its_own() -> None:
    codes = [gate.code for gate in GATES]
    assert len(set(codes)) == len(codes)
    assert {CATALOGUE[code].exit for code in codes} == {1}


DOCTORED: dict[str, tuple[dict[str, Any], str]] = {
    "F4: a byte changed after the build": ({"tamper": b"x"}, "AW416"),
    "A4: one kernel lacks an architecture": (
        {
            "code": replace(CODE, kernels=CODE.kernels[:1]),
            "budget": {k: v for k, v in BUDGET.items() if k[1] == "sm_100a"},
        },
        "AW411",
    ),
    "A4: code for another architecture": ({"code": replace(CODE, cubins=(*CODE.cubins, entry("sm_90a")))}, "AW411"),
    "A2: family code in place of exact code": (
        {"code": replace(CODE, cubins=(entry("sm_100f"), CODE.cubins[1]))},
        "AW411",
    ),
    "G5: no kernel at all": ({"code": replace(CODE, kernels=(), cubins=())}, "AW411"),
    "PTX": ({"code": replace(CODE, ptx=(Ptx(MODULE, "sm_100a", 100),))}, "AW412"),
    "a device link left its input": (
        {"code": replace(CODE, cubins=(*CODE.cubins, entry("sm_100a", "__nv_relfatbin", relocatable=True)))},
        "AW413",
    ),
    "a tag in WHEEL that the name does not have": ({"tag": "cp312-cp312-manylinux_2_28_x86_64"}, "AW414"),
    "binaries newer than the tag": (
        {"code": replace(CODE, binaries=(Binary(MODULE, "x86_64", Dynamic(("libc.so.6",), (), ("GLIBC_2.38",))),))},
        "AW414",
    ),
    "binaries older than the tag": (
        {"code": replace(CODE, binaries=(Binary(MODULE, "x86_64", Dynamic(("libc.so.6",), (), ("GLIBC_2.17",))),))},
        "AW414",
    ),
    "binaries of another processor": (
        {"code": replace(CODE, binaries=(replace(CODE.binaries[0], processor="aarch64"),))},
        "AW414",
    ),
    "a record that is not of the right kind": (
        {"record": {"component": "tiny", "target": "sm100", "toolchain": ["13.2.86"]}},
        "AW422",
    ),
    "B4: a run path": (
        {
            "code": replace(
                CODE, binaries=(Binary(MODULE, "x86_64", replace(CODE.binaries[0].dynamic, run_paths=("/opt/x",))),)
            )
        },
        "AW403",
    ),
    "H2: a path in a text": (
        {"members": {"tiny/note.txt": b"built in " + str(Path(__file__).parents[1]).encode()}},
        "AW415",
    ),
    "H2: a path in a binary": ({"members": {"tiny/x.so": b"\x7fELF\0/home/alice/src/a.cu\0"}}, "AW415"),
    "B6: cubins of another toolkit": ({"toolkit": "cu130"}, "AW422"),
    "B6: a record about another target": (
        {"record": {"component": "tiny", "target": "sm90", "toolchain": {"nvcc": "13.2.86"}}},
        "AW422",
    ),
    "B6: metadata of another version": (
        {"members": {f"{INFO}/METADATA": b"Metadata-Version: 2.2\nName: tiny\nVersion: 1.0+cu130.sm100\n"}},
        "AW422",
    ),
    "B6: a record of another nvcc": (
        {"record": {"component": "tiny", "target": "sm100", "toolchain": {"nvcc": "13.2.99"}}},
        "AW422",
    ),
    "a kernel that spills": (
        {"code": replace(CODE, kernels=(kernel("sm_100a", spill_stores=20, spill_loads=28), CODE.kernels[1]))},
        "AW418",
    ),
    "H1: setmaxnreg ignored": (
        {"code": replace(CODE, kernels=(kernel("sm_100a", losses=("'setmaxnreg' ignored",)), CODE.kernels[1]))},
        "AW418",
    ),
    "spills that nobody recorded": (
        {"code": replace(CODE, kernels=(kernel("sm_100a", spill_stores=None), CODE.kernels[1]))},
        "AW418",
    ),
    "a toolchain without a budget": ({"budget": {}}, "AW418"),
    "a kernel gone that the budget names": (
        {
            "budget": {
                **BUDGET,
                ("13.2.86", "sm_100a"): {"_Z3runPf": Limits(168, 0, 0, 0), "_Z4gonev": Limits(1, 0, 0, 0)},
            }
        },
        "AW418",
    ),
}


@pytest.mark.parametrize(("how", "code"), DOCTORED.values(), ids=DOCTORED)
def test_a_doctored_wheel_fails_with_the_right_code(
    how: dict[str, Any], code: str, make: Callable[..., Subject]
) -> None:
    assert list(failed(make(**how))) == [code]


def test_f2_a_wheel_above_its_size_budget(make: Callable[..., Subject]) -> None:
    subject = make()
    small = replace(subject, component=replace(subject.component, max_mib=0.0001))
    assert "0.00 MiB; the recipe allows 0.0001 MiB" in failed(small)["AW417"][0]


def test_g5_a_wheel_without_an_expected_file(make: Callable[..., Subject]) -> None:
    subject = make()
    more = replace(subject, component=replace(subject.component, wheel_expect=("tiny/*.so", "tiny/data/*.bin")))
    assert failed(more) == {"AW401": ("no file tiny/data/*.bin",)}


def test_symbols_above_the_floor(make: Callable[..., Subject]) -> None:
    old = replace(SM100, floor={"glibc": "2.31", "GLIBCXX": "3.4.1", "CXXABI": "1.3"})
    assert failed(make(target=old)) == {"AW402": ("GLIBC_2.34 (floor 2.31)",)}


def test_ptx_that_the_recipe_declares_passes(make: Callable[..., Subject]) -> None:
    subject = make(code=replace(CODE, ptx=(Ptx(MODULE, "sm_100a", 100),)))
    assert failed(replace(subject, component=replace(subject.component, wheel_ptx=("sm_100a",)))) == {}


def test_a_path_that_the_recipe_declares_passes(make: Callable[..., Subject]) -> None:
    subject = make(members={"tiny/x.so": b"\x7fELF\0/tmp/deep_jit.log\0"})
    assert failed(subject) == {"AW415": ("tiny/x.so: /tmp/deep_jit.log",)}
    allowed = replace(subject.component, wheel_paths=("/tmp/deep_jit*",))
    assert failed(replace(subject, component=allowed)) == {}


def test_a_wheel_without_device_code_may_have_none(
    make: Callable[..., Subject], make_recipe: Callable[..., Component]
) -> None:
    host = make_recipe("c" * 64)
    empty = replace(CODE, kernels=(), cubins=())
    assert failed(make(code=empty, component=host)) == {}
    assert list(failed(make(component=host, code=replace(CODE, kernels=())))) == ["AW411"]


def test_a_kernel_in_two_files_is_covered_in_each(make: Callable[..., Subject]) -> None:
    """Case A4: the other file's image does not help."""
    other = replace(kernel("sm_100a"), member="tiny/_D.so")
    problems = failed(make(code=replace(CODE, kernels=(*CODE.kernels, other))))["AW411"]
    assert problems == ("tiny/_D.so: _Z3runPf is not there for sm_103a",)


def test_the_error_names_every_problem() -> None:
    findings = (
        Finding("AW412", "PTX in the wheel", ("one", "two")),
        Finding("AW417", "wheel above its size budget", ("three",)),
        Finding("AW418", "kernels outside their budget", ()),
    )
    error = gate_error(findings, "a.whl")
    assert error is not None
    assert (error.code, error.found) == ("AW412", "a.whl: one (and 2 more)")
    assert error.detail.splitlines() == ["AW412 one", "AW412 two", "AW417 three"]
