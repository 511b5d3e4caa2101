"""What is a change between two wheels, and what is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archwright.compare import compare
from archwright.components import Component
from archwright.cubin import Cubin
from archwright.gates import Subject
from archwright.kernels import DeviceCode, KernelFacts
from archwright.targets import target_table
from archwright.wheelfile import read_wheel


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
