"""What is a change between two wheels, and what is not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archwright.compare import compare
from archwright.components import Component
from archwright.cubin import Cubin
from archwright.gates import Subject
from archwright.kernels import DeviceCode, KernelFacts, read_device_code
from archwright.report import show_comparison
from archwright.targets import target_table
from archwright.wheelfile import read_wheel

from .fuzz.builders import PROGBITS, FakeEntry, Part, ascend_kernels, cce, library


def kernel(name: str = "_Z1kv", arch: str = "sm_100a", member: str = "tiny/_C.so", **figures: Any) -> KernelFacts:
    values = {"registers": 168, "stack": 0, "local": 0, "shared": 0, "max_threads": 0, "code": 512, **figures}
    return KernelFacts(member, name, arch, "13.2.86", constants={}, **values)


Make = Callable[..., Subject]


@pytest.fixture
def make(tmp_path: Path, make_recipe: Callable[..., Component], make_wheel: Callable[..., Path]) -> Make:
    """A wheel with these kernels, made by the ptxas of this release."""
    path = make_wheel(tmp_path / "tiny-1.0+cu132.sm100-cp312-cp312-manylinux_2_34_x86_64.whl")
    recipe = make_recipe("c" * 64)

    def subject(*kernels: KernelFacts, toolkit: str = "13.2.86") -> Subject:
        cubin = ("tiny/_C.so", ".nv_fatbin", Cubin("sm_100a", toolkit, (), False, ()), 64, "")
        code = DeviceCode((), (cubin,), (), kernels)
        return Subject(read_wheel(path), code, recipe, target_table().targets["sm100"], ("sm_100a",), "cu132", {})

    return subject


@pytest.mark.parametrize(
    "figures",
    [
        {"registers": 170},
        {"stack": 16},
        {"local": 8},
        {"shared": 1024},
        {"max_threads": 384},
        {"code": 640},
        {"spill_stores": 4},
        {"spill_loads": 4},
        {"instructions": {"mma": 7}},
    ],
)
def test_every_figure_is_compared(figures: dict[str, Any], make: Make) -> None:
    known = {"spill_stores": 0, "spill_loads": 0, "instructions": {"tcgen05.mma": 3}}
    old, new = kernel(**known), kernel(**{**known, **figures})
    (change,) = compare(make(old), make(new)).changed
    ((field, value),) = figures.items()
    assert change.fields == {field: (getattr(old, field), value)}


@pytest.mark.parametrize("field", ["spill_stores", "spill_loads", "instructions"])
def test_what_one_side_does_not_know_is_no_change(field: str, make: Make) -> None:
    value: Any = {"mma": 7} if field == "instructions" else 20
    known, unknown = make(kernel(**{field: value})), make(kernel())
    assert compare(known, unknown).changed == compare(unknown, known).changed == ()


def test_a_kernel_is_another_one_for_each_architecture(make: Make) -> None:
    found = compare(make(kernel()), make(kernel(), kernel(arch="sm_103a")))
    assert (found.added, found.removed, found.changed) == ((("_Z1kv", "sm_103a"),), (), ())
    assert found.kernels == 2


def test_a_kernel_in_several_files_is_compared_as_a_whole_in_any_order(make: Make) -> None:
    two = (kernel(member="a.so", code=512), kernel(member="b.so", code=640))
    assert compare(make(*two), make(*reversed(two))).changed == ()
    (change,) = compare(make(*two), make(two[0], replace(two[1], code=768))).changed
    assert change.fields == {"code": ([512, 640], [512, 768])}
    (change,) = compare(make(*two), make(two[0])).changed
    assert change.fields["code"] == ([512, 640], [512])


def test_toolkits_and_sizes_are_those_of_the_wheels(make: Make) -> None:
    found = compare(make(toolkit="13.1.115"), make(toolkit="13.2.86"))
    assert found.toolkits == (("13.1.115",), ("13.2.86",))
    assert found.bytes[0] == found.bytes[1] > 0
    assert found.as_dict()["kernels"] == 0


def test_cccls_list_of_architectures_makes_no_new_kernel(make: Make) -> None:
    old = kernel("_ZN3cub17_V_300200_SM_10006detail11EmptyKernelIvEEvv")
    new = kernel("_ZN3cub22_V_300200_SM_1000_10306detail11EmptyKernelIvEEvv")
    found = compare(make(old), make(new))
    assert (found.added, found.removed, found.changed) == ((), (), ())


NAME = "tiny-1.0+cann92.ascend950-cp312-cp312-manylinux_2_34_x86_64.whl"
SECTION = ".ascend.kernel.{soc}.ops"


@pytest.fixture
def ascend(
    tmp_path: Path, make_recipe: Callable[..., Component], make_wheel: Callable[..., Path]
) -> Callable[..., Subject]:
    """A wheel for Ascend with these files; a container's name says its SoC."""

    def subject(files: dict[str, bytes]) -> Subject:
        wheel = read_wheel(make_wheel(tmp_path / NAME, files))
        code = read_device_code(wheel.members)
        return Subject(wheel, code, make_recipe("c" * 64), target_table().targets["ascend950"], (), "cann92", {})

    return subject


def carrier(*entries: FakeEntry, soc: str = "ascend950pr_9599", flags: int = 0x990000) -> dict[str, bytes]:
    content = ascend_kernels((1, cce(entries, flags=flags)))
    return {"tiny/_C.so": library(parts=[Part(SECTION.format(soc=soc), PROGBITS, content)])}


def test_kernels_for_ascend_are_compared_by_entry_symbol_and_architecture(ascend: Make) -> None:
    old = ascend(carrier(FakeEntry("same"), FakeEntry("grown", code=64, arguments=56), FakeEntry("gone")))
    new = ascend(carrier(FakeEntry("same"), FakeEntry("grown", code=96, arguments=64), FakeEntry("new")))
    found = compare(old, new)
    assert (found.added, found.removed) == ((("new", "dav-3510"),), (("gone", "dav-3510"),))
    assert [(c.name, c.arch, c.fields) for c in found.changed] == [
        ("grown", "dav-3510", {"code": (64, 96), "arguments": (56, 64)})
    ]
    assert found.kernels == 4
    assert found.compilers == (("Linker: LLD 15.0.5",), ("Linker: LLD 15.0.5",))
    assert compare(old, old).changed == ()


def test_what_is_known_of_a_cce_file_is_compared_too(ascend: Make) -> None:
    old = ascend(carrier(FakeEntry("run")))
    (change,) = compare(old, ascend(carrier(FakeEntry("run"), soc="ascend950dt_9582", flags=0x9A0000))).changed
    assert change.fields == {"soc": ("ascend950pr_9599", "ascend950dt_9582"), "flags": ("0x990000", "0x9a0000")}
    (change,) = compare(old, ascend(carrier(FakeEntry("run", kernel_type=2)))).changed
    assert change.fields["core"] == ("vector", "cube")
    found = compare(old, ascend(carrier(FakeEntry("run"), soc="ascend910b1")))
    assert (found.added, found.removed) == ((("run", "ascend910b1"),), (("run", "dav-3510"),))


def source(digest: str, text: str, *symbols: str, build: bytes | None = None) -> dict[str, bytes]:
    facts = {"compiler": {"target_arch": "dav-3510"}, "symbols": symbols}
    folder = f"pack/root/ascend/{digest}"
    return {f"{folder}/kernel.asc": text.encode(), f"{folder}/build.json": build or json.dumps(facts).encode()}


def test_lowered_sources_are_compared_by_their_entry_symbols(ascend: Make) -> None:
    """The folder's name is a digest and differs whenever the content does: it says nothing."""
    kept = source("0a", "same", "same")
    old = ascend(kept | source("1b", "before", "norm") | source("2c", "x", "gone") | source("4d", "one", "twice"))
    new = ascend(kept | source("3e", "after", "norm") | source("4d", "one", "twice") | source("5f", "two", "twice"))
    found = compare(old, new)
    assert (found.added, found.removed, found.kernels) == ((), (("gone", "dav-3510"),), 4)
    changes = {change.name: change.fields for change in found.changed}
    assert changes["norm"] == {"source": tuple(hashlib.sha256(t).hexdigest()[:16] for t in (b"before", b"after"))}
    assert [len(digests) for digests in changes["twice"]["source"]] == [1, 2]


@pytest.mark.parametrize("build", [b"{", b"[]", b"{}", b'{"symbols": 3, "compiler": 1}', b"\xff"])
def test_a_source_that_does_not_say_its_symbols_goes_by_its_folder(build: bytes, ascend: Make) -> None:
    old = ascend(source("0a", "a", "run", build=build))
    (change,) = compare(old, ascend(source("0a", "b", "run", build=build))).changed
    assert (change.name, change.arch) == ("pack/root/ascend/0a", "unknown")


def test_the_comparison_of_ascend_kernels_is_shown(ascend: Make, capsys: pytest.CaptureFixture[str]) -> None:
    show_comparison(compare(ascend(carrier(FakeEntry("run", code=64))), ascend(carrier(FakeEntry("run", code=96)))))
    out = capsys.readouterr().out
    assert out.startswith("compilers Linker: LLD 15.0.5 -> Linker: LLD 15.0.5; 0.00 -> 0.00 MiB")
    assert "~ run (dav-3510): code 64 -> 96" in out
    assert "nvcc" not in out
