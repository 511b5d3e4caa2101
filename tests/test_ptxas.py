"""ptxas's report, in its own words (nvcc 13.2.86, `--ptxas-options=-v`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from archwright.ptxas import Report, read_report, read_reports

TWO_ARCHES = """\
ptxas info    : 3 bytes gmem, 24 bytes cmem[4]
ptxas info    : Compiling entry function '_Z1gv' for 'sm_100a'
ptxas info    : Function properties for _Z1gv
    40 bytes stack frame, 20 bytes spill stores, 28 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 40 bytes cumulative stack size
ptxas info    : Compile time = 358.251 ms
ptxas info    : Function properties for _Z6helperv
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function '_Z1kv' for 'sm_100a'
ptxas info    : Function properties for _Z1kv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers
ptxas info    : 3 bytes gmem, 24 bytes cmem[4]
ptxas info    : Compiling entry function '_Z1gv' for 'sm_103a'
ptxas info    : Function properties for _Z1gv
    48 bytes stack frame, 72 bytes spill stores, 72 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 48 bytes cumulative stack size
"""
IGNORED = "(C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry."
SERIAL = (
    "(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register "
    "resources for the function '_Z1kv'"
)


def test_kernels_of_two_architectures_and_not_their_helpers() -> None:
    assert list(read_report(TWO_ARCHES)) == [
        Report("_Z1gv", "sm_100a", 168, 40, 20, 28),
        Report("_Z1kv", "sm_100a", 32, 0, 0, 0),
        Report("_Z1gv", "sm_103a", 168, 48, 72, 72),
    ]


@pytest.mark.parametrize("text", ["", "nvcc warning : something\n", "a.cu(3): warning #68-D: integer conversion\n"])
def test_other_output_has_no_report(text: str) -> None:
    assert list(read_report(text)) == []


def test_h1_a_loss_without_a_name_counts_for_every_kernel_of_its_architecture() -> None:
    text = TWO_ARCHES.replace(
        "ptxas info    : 3 bytes gmem", f"ptxas info    : {IGNORED}\nptxas info    : 3 bytes gmem", 1
    )
    losses = {(r.name, r.arch): r.losses for r in read_report(text)}
    assert all(IGNORED in losses[name, "sm_100a"][0] for name in ("_Z1gv", "_Z1kv"))
    assert losses["_Z1gv", "sm_103a"] == ()


def test_h1_a_loss_of_the_second_architecture_is_not_the_firsts() -> None:
    """ptxas prints it after the first architecture's last kernel, and before the second's first."""
    head = "ptxas info    : 3 bytes gmem"
    first, second, third = TWO_ARCHES.partition(head)[2].partition(head)
    text = f"{head}{first}ptxas info    : {IGNORED}\n{second}{third}"
    losses = {(r.name, r.arch): r.losses for r in read_report(text)}
    assert losses == {("_Z1gv", "sm_100a"): (), ("_Z1kv", "sm_100a"): (), ("_Z1gv", "sm_103a"): (IGNORED,)}


def test_h1_a_loss_after_the_last_kernel_is_not_lost() -> None:
    text = f"{TWO_ARCHES}ptxas warning : 'setmaxnreg' ignored\n"
    assert [r.losses for r in read_report(text)] == [(), (), ("'setmaxnreg' ignored",)]


@pytest.mark.parametrize(
    "line",
    [
        "a.cu(7): warning #177-D: variable 'setmaxnreg' was declared but never referenced",
        "a.cpp:7:5: warning: unused variable 'setmaxnreg'",
        "ptxas a.ptx, line 481; error   : Instruction 'setmaxnreg.dec' not supported on .target 'sm_100'",
    ],
)
def test_what_others_say_about_setmaxnreg_is_no_loss(line: str) -> None:
    assert [r.losses for r in read_report(f"{line}\n{TWO_ARCHES}{line}\n")] == [(), (), ()]


def test_h1_a_loss_with_a_name_counts_for_that_kernel() -> None:
    text = f"ptxas info    : {SERIAL}\n{TWO_ARCHES}"
    losses = {(r.name, r.arch): r.losses for r in read_report(text)}
    assert losses == {("_Z1gv", "sm_100a"): (), ("_Z1kv", "sm_100a"): (SERIAL,), ("_Z1gv", "sm_103a"): ()}


def test_h1_real_words_with_a_line_number_and_a_named_function() -> None:
    text = """\
ptxas info    : (C7517) wgmma.wait_group is injected in around line 59 by compiler to allow use of registers defined \
by GMMA in function '_Z6serialPfyy'
ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient \
register resources for the wgmma pipeline in the function '_Z6serialPfyy' in line 61
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z6serialPfyy' for 'sm_90a'
ptxas info    : Function properties for _Z6serialPfyy
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 0 barriers
ptxas info    : Compile time = 7.676 ms
ptxas info    : Function properties for _Z5touchPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
"""
    (report,) = read_report(text)
    assert (report.name, report.registers) == ("_Z6serialPfyy", 30)
    (loss,) = report.losses
    assert loss.startswith("(C7511) ") and loss.endswith("in the function '_Z6serialPfyy' in line 61")


def test_logs_are_read_together_and_one_that_is_gone_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "a.o.log").write_text(TWO_ARCHES)
    (tmp_path / "b.o.log").write_bytes(b"\xff\xfe" + TWO_ARCHES.replace("_Z1gv", "_Z1xv").encode())
    found = read_reports([tmp_path / "a.o.log", tmp_path / "b.o.log", tmp_path / "gone.o.log"])
    assert len(found) == 5
    (other,) = (report for report in found.values() if (report.name, report.arch) == ("_Z1xv", "sm_103a"))
    assert other.spill_stores == 72


def test_kernels_of_one_name_are_told_apart_and_of_two_alike_the_worse_counts(tmp_path: Path) -> None:
    """TileLang calls the kernels of every shape the same."""
    for name, (registers, spilled) in {"a": (80, 0), "b": (80, 8), "c": (80, 4), "d": (96, 0)}.items():
        (tmp_path / name).write_text(
            "ptxas info    : Compiling entry function '_rope_kernel' for 'sm_100a'\n"
            "ptxas info    : Function properties for _rope_kernel\n"
            f"    0 bytes stack frame, {spilled} bytes spill stores, {spilled} bytes spill loads\n"
            f"ptxas info    : Used {registers} registers, used 0 barriers\n"
        )
    found = read_reports(sorted(tmp_path.iterdir()))
    assert {report.registers: report.spill_stores for report in found.values()} == {80: 8, 96: 0}
