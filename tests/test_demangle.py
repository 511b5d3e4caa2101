"""Names of kernels: demangled by the C++ runtime, short ones for tables, stable ones for budgets."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from archwright import demangle as module
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


def reference(number: int) -> str:
    """The number-th part of a mangled name, as the name itself refers to it."""
    digits = ""
    while number > 0:
        number -= 1
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[number % 36] + digits
        number = number // 36
    return f"S{digits}_"


def bomb(levels: int) -> str:
    """A function whose n-th parameter is a function of two parameters like the one before: 2 ** levels words."""
    last, name = 1, "_Z1fPFviiE"
    for _ in range(levels):
        name += f"PFv{reference(last)}{reference(last)}E"
        last += 2
    return name


def test_a_small_one_of_these_bombs_is_a_real_name() -> None:
    """Else the next tests would show nothing."""
    assert demangle(bomb(2)).startswith("f(void (*)(int, int), void (*)(void (*)(int, int), void (*)(int, int)), ")
    assert len(demangle(bomb(8))) > 10_000, "more references than are demangled in this process"
    assert demangle(bomb(12)) == bomb(12), "a text of more than 64 KiB"


#: Prints the peak memory of itself (ru_maxrss would hold pytest's, from before the exec) and of its children, in MiB.
BOMBS = """
import re, resource, sys
from pathlib import Path
from archwright.demangle import demangle
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
for name in sys.argv[1:]:
    assert demangle(name) == name
assert demangle("_Z3runILi256EEvPfi") == "void run<256>(float*, int)"
mine = int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
print(mine >> 10, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)
"""


def test_a_name_that_stands_for_gigabytes_stays_as_it_is() -> None:
    """Each ends a child that has limits; after a few of them none is started any more."""
    began = time.monotonic()
    names = [bomb(levels) for levels in (24, 40, 60, 61, 62, 63, 100)]
    assert max(map(len, names)) < 1200
    run = subprocess.run([sys.executable, "-c", BOMBS, *names], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    mine, children = map(int, run.stdout.split())
    assert mine < 100 and children < 400, "MiB at most"
    assert time.monotonic() - began < 40


def test_after_a_bomb_other_names_are_demangled() -> None:
    code = "import sys; from archwright.demangle import demangle; print([len(demangle(n)) for n in sys.argv[1:]])"
    run = subprocess.run([sys.executable, "-c", code, bomb(9), bomb(60), bomb(8)], capture_output=True, text=True)
    lengths = json.loads(run.stdout)
    assert lengths[0] > 20_000 and lengths[1] == len(bomb(60)) and lengths[2] > 10_000


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
        ("_ZN3cub17_V_300200_SM_10001aE_ZN6thrust17_V_300200_SM_10001bE", "_ZN3cub2_V1aE_ZN6thrust2_V1bE"),
        ("_ZN3cub99_V_1_SM_2", "_ZN3cub2_V"),
        ("_ZN3cub2_V_1_SM_1", "_ZN3cub2_V_1_SM_1"),  # the result looks like the name again: no endless loop
        ("_ZN3cub" + "9" * 5000 + "_V_1_SM_1", "_ZN3cub" + "9" * 5000 + "_V_1_SM_1"),  # more digits than int() takes
    ],
)
def test_stable_names_do_not_list_the_builds_architectures(name: str, stable: str) -> None:
    assert stable_name(name) == stable


def test_a_child_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_serve", lambda questions, answers: time.sleep(60))
    monkeypatch.setattr(module, "_PATIENCE", 0.2)
    child = module._Child()
    start = time.monotonic()
    assert child.ask(b"_Z1fv") == b""
    assert time.monotonic() - start < 20
