"""Names of kernels: demangled by the C++ runtime, short ones for tables, stable ones for budgets."""

from __future__ import annotations

import pytest

from archwright.demangle import demangle, short_name, stable_name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("_Z3runILi256EEvPfi", "void run<256>(float*, int)"),
        ("_ZN5sm1006decode3k64Ev", "sm100::decode::k64()"),
        ("plain_c_kernel", "plain_c_kernel"),
        ("_Znot a name", "_Znot a name"),
        ("_Z" + "1a" * 40_000, "_Z" + "1a" * 40_000),
        ("", ""),
        ("_ZN\x00", "_ZN\x00"),
    ],
)
def test_demangle(name: str, text: str) -> None:
    assert demangle(name) == text


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("void run<256>(float*, int)", "run<256>"),
        ("sm100::decode::k64()", "k64"),
        ("void cutlass::device_kernel<cutlass::fmha::Kernel<int, (cute::Mode)1> >(Params)", "Kernel<int, (Mode)1> "),
        ("void (anonymous namespace)::run<(anonymous namespace)::Op>(float*)", "run<Op>"),
        ("plain", "plain"),
        ("void f<g(int)>(float)", "f<g(int)>"),
    ],
)
def test_short_names_leave_out_what_every_kernel_has(text: str, short: str) -> None:
    assert short_name(text) == short


def test_short_names_are_cut() -> None:
    assert short_name("x" * 100, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(
    ("name", "stable"),
    [
        ("_ZN3cub17_V_300200_SM_10006detail11EmptyKernelIvEEvv", "_ZN3cub2_V6detail11EmptyKernelIvEEvv"),
        ("_ZN3cub22_V_300200_SM_1000_10306detail11EmptyKernelIvEEvv", "_ZN3cub2_V6detail11EmptyKernelIvEEvv"),
        ("_ZN6thrust17_V_300200_SM_10006system1kEv", "_ZN6thrust2_V6system1kEv"),
        ("_Z3runILi256EEvPfi", "_Z3runILi256EEvPfi"),
        ("_ZN3cub99_V_1_SM_2", "_ZN3cub2_V"),
    ],
)
def test_stable_names_do_not_list_the_builds_architectures(name: str, stable: str) -> None:
    assert stable_name(name) == stable
