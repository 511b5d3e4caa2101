"""Kernel budgets: written, read, and what a new toolchain changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archwright.budget import Limits, check_budget, read_budget, write_budget
from archwright.errors import ArchwrightError
from archwright.kernels import KernelFacts

DECODE, COMBINE = "_Z6decodePf", "_Z7combinePf"


def kernel(name: str = DECODE, arch: str = "sm_100a", **figures: Any) -> KernelFacts:
    values = {"registers": 168, "stack": 0, "spill_stores": 0, "spill_loads": 0, "member": "a.so", **figures}
    return KernelFacts(
        name=name, arch=arch, toolkit="13.2.86", local=0, shared=0, constants={}, max_threads=0, code=1, **values
    )


SPILLING = kernel(stack=16, spill_stores=20, spill_loads=28)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "budget.sm100.toml"


def write(path: Path, *kernels: KernelFacts, nvcc: str = "13.2.86") -> None:
    write_budget(path, kernels, nvcc, "tiny", "sm100")


def test_what_was_written_is_read_and_lets_the_same_kernels_pass(path: Path) -> None:
    write(path, SPILLING, kernel(COMBINE, registers=48))
    budget = read_budget(path)
    assert budget == {("13.2.86", "sm_100a"): {DECODE: Limits(168, 16, 20, 28), COMBINE: Limits(48, 0, 0, 0)}}
    assert check_budget(budget, [SPILLING, kernel(COMBINE, registers=48)], "13.2.86") == []


def test_less_than_the_budget_passes(path: Path) -> None:
    write(path, SPILLING)
    assert check_budget(read_budget(path), [kernel(registers=128)], "13.2.86") == []


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"registers": 170}, "170 registers (budget 168)"),
        ({"stack": 24}, "24 bytes of stack (budget 16)"),
        ({"spill_stores": 24}, "24 bytes of spill stores (budget 20)"),
        ({"spill_loads": 32}, "32 of loads (budget 28)"),
    ],
)
def test_more_than_the_budget_is_named_with_both_figures(figures: dict[str, int], words: str, path: Path) -> None:
    write(path, SPILLING)
    now = kernel(**{"stack": 16, "spill_stores": 20, "spill_loads": 28, **figures})
    assert check_budget(read_budget(path), [now], "13.2.86") == [f"decode (sm_100a): {words}"]


def test_a_new_nvcc_is_compared_with_the_one_that_is_known(path: Path) -> None:
    """What happened to flash_mla: 13.1.115 spills nothing, 13.2.86 does in two kernels."""
    write(path, kernel(), kernel(COMBINE), nvcc="13.1.115")
    problems = check_budget(read_budget(path), [SPILLING, kernel(COMBINE)], "13.2.86")
    assert problems == [
        "no budget for nvcc 13.2.86, sm_100a; there is one for 13.1.115",
        "decode (sm_100a), 13.1.115 -> 13.2.86: "
        "0 -> 16 bytes of stack, 0 -> 20 bytes of spill stores, 0 -> 28 of loads",
    ]


def test_the_newest_known_nvcc_is_the_newest_by_number(path: Path) -> None:
    for nvcc in ("13.2.86", "13.10.1", "13.1.115"):
        write(path, kernel(), nvcc=nvcc)
    problems = check_budget(read_budget(path), [SPILLING], "13.11.0")
    assert problems[0].endswith("there is one for 13.1.115, 13.2.86, 13.10.1")
    assert ", 13.10.1 -> 13.11.0: " in problems[1]


def test_problems_come_in_a_fixed_order_and_once(path: Path) -> None:
    write(path, *(kernel(f"_Z2k{n}v") for n in range(2, 9)))
    problems = check_budget(read_budget(path), [SPILLING, SPILLING], "13.2.86")
    assert len(problems) == 8
    assert problems[1:] == sorted(problems[1:])


def test_writing_again_replaces_only_the_wheels_own_lines(path: Path) -> None:
    write(path, kernel(), kernel(arch="sm_103a"), nvcc="13.1.115")
    write(path, SPILLING)
    before = path.read_text()
    write(path, kernel(registers=160))

    budget = read_budget(path)
    assert set(budget) == {("13.1.115", "sm_100a"), ("13.1.115", "sm_103a"), ("13.2.86", "sm_100a")}
    assert budget["13.2.86", "sm_100a"] == {DECODE: Limits(160, 0, 0, 0)}
    changed = set(before.splitlines()) ^ set(path.read_text().splitlines())
    assert len(changed) == 2, "one line out, one line in: a difference that can be read"


def test_the_order_of_the_kernels_does_not_matter(path: Path) -> None:
    write(path, kernel(), kernel(COMBINE))
    first = path.read_bytes()
    path.unlink()
    write(path, kernel(COMBINE), kernel())
    assert path.read_bytes() == first


def test_a_kernel_in_two_files_counts_with_its_largest_figures(path: Path) -> None:
    write(path, kernel(registers=40), SPILLING)
    assert read_budget(path)["13.2.86", "sm_100a"] == {DECODE: Limits(168, 16, 20, 28)}


def test_a_budget_is_not_made_of_guesses(path: Path) -> None:
    with pytest.raises(ArchwrightError, match="AW418"):
        write(path, kernel(spill_stores=None))
    assert not path.exists()


def test_no_file_is_an_empty_budget(path: Path) -> None:
    assert read_budget(path) == {}


@pytest.mark.parametrize(
    "text",
    [
        "schema = 2\n",
        "kernels = [",
        "schema = 1\nkernels = 3\n",
        'schema = 1\n[kernels.a]\n"13.2.86 sm_100a" = { registers = 1 }\n',
        'schema = 1\n[kernels.a]\n"13.2.86 sm_100a" = 7\n',
        'schema = 1\n[kernels.a]\n"13.2.86 sm_100a" = { registers = "x", stack = 0, stores = 0, loads = 0 }\n',
    ],
)
def test_aw108_a_budget_that_is_not_valid_limits_nothing_and_says_so(text: str, path: Path) -> None:
    path.write_text(text)
    with pytest.raises(ArchwrightError, match="AW108"):
        read_budget(path)


def test_a_kernel_keeps_its_budget_when_an_architecture_is_added(path: Path) -> None:
    """CCCL names the architectures of the whole build in its namespace."""
    one = kernel("_ZN3cub17_V_300200_SM_10006detail11EmptyKernelIvEEvv")
    two = kernel("_ZN3cub22_V_300200_SM_1000_10306detail11EmptyKernelIvEEvv")
    write(path, one)
    assert check_budget(read_budget(path), [two], "13.2.86") == []
    assert list(read_budget(path)["13.2.86", "sm_100a"]) == ["_ZN3cub2_V6detail11EmptyKernelIvEEvv"]
