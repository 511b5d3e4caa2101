"""How results look: what is measured is shown, nothing is claimed beyond it, and names are shown as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from archwright import render
from archwright.build import BuildResult, BuiltWheel
from archwright.components import Unit, components
from archwright.environment import Environment
from archwright.manifests import Lowered
from archwright.plan import Limit, Plan, make_plan
from archwright.pool import Measured
from archwright.sources import SourceTree
from archwright.targets import target_table

SM100 = target_table().targets["sm100"]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def plan(cache: Path) -> Plan:
    return make_plan(SM100, (components()["deep_ep"],), SM100.gencodes, jobs=2, memory_mib=8192)


def test_a_folder_with_brackets_is_shown_as_it_is(environment: Environment, capsys: Capture) -> None:
    """Rich takes [bold] for markup."""
    odd = Path("/home/me/[bold]/x")
    wheel = BuiltWheel("deep_ep", odd / "a.whl", "0" * 64, 2_000_000, odd / "a.json")

    render.show_environment(replace(environment, path=odd))
    render.show_sources([SourceTree("deep_ep", "2.5.0", "0" * 64, odd, {})])
    render.show_result(BuildResult("sm100", (wheel,), 1, 0, 0, 5.0))

    assert capsys.readouterr().out.count(str(odd)) == 4


def test_a_source_pack_was_not_compiled(capsys: Capture) -> None:
    lowered = Lowered(3, 2, 9, {"norm": ("upstream [said] no",)})
    wheel = BuiltWheel("tilelang_ops", Path("/dist/a.whl"), "5" * 64, 2_000_000, None, lowered)
    render.show_result(BuildResult("ascend950", (wheel,), 3, 0, 0, 61.2, device_compile="not verified here"))
    out = capsys.readouterr().out
    assert "compiles: not shown of tilelang_ops" in out
    assert "lowered: 2 of 3 operations, 9 kernels; no evidence" in out
    assert "norm: upstream [said] no" in out
    assert "3 lowered" in out
    assert "device_compile: not verified here" in out


def test_a3_a_result_claims_no_more_than_that_it_compiled(capsys: Capture) -> None:
    wheel = BuiltWheel("deep_ep", Path("/dist/a.whl"), "5" * 64, 2_000_000, Path("/dist/evidence/a.json"))
    render.show_result(BuildResult("sm100", (wheel,), 3, 1, 2, 61.2))
    out = capsys.readouterr().out
    for words in ("1 wheel ", "3 compiled", "1 from the compiler cache", "2 up to date", "5" * 64, "2.0 MB"):
        assert words in out
    assert "correct, performs: not verified" in out


def test_the_environment_names_its_versions(environment: Environment, capsys: Capture) -> None:
    render.show_environment(environment)
    out = capsys.readouterr().out
    for words in ("nvcc 13.2.86", "GCC 14.2.0", "torch 2.13.0", "NCCL 2.32.3", environment.digest):
        assert words in out


def test_the_plan_of_host_files_mentions_no_gencode(plan: Plan, capsys: Capture) -> None:
    render.show_plan(plan)
    out = capsys.readouterr().out
    assert "0 device, 3 host" in out
    assert "sm_100a" not in out


def test_d1_the_plan_shows_what_decided_and_what_else_was_found(plan: Plan, capsys: Capture) -> None:
    jobs = (Limit("MAX_JOBS", 2, decides=True), Limit("cores of this process", 16))
    memory = (Limit("cgroup /a[b] (limit 12.0 GiB)", 10240, decides=True), Limit("available on this machine", 65536))

    render.show_plan(replace(plan, jobs_limits=jobs, memory_limits=memory))

    out = " ".join(capsys.readouterr().out.split())
    assert "85% of: cgroup /a[b] (limit 12.0 GiB) 10.0 GiB (found too: available on this machine 64.0 GiB)" in out
    assert "MAX_JOBS 2 (found too: cores of this process 16)" in out


def test_what_the_user_says_is_not_cut_by_a_share(plan: Plan, capsys: Capture) -> None:
    render.show_plan(plan)
    out = capsys.readouterr().out
    assert "  --jobs 2" in out
    assert "  --memory 8.0 GiB" in out
    assert "85%" not in out


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "the recipes' figures: nothing was measured here yet"),
        (2, "measured here for 2 of 3; the others as the recipes say"),
        (3, "measured here for 3 of 3\n"),
    ],
)
def test_the_plan_says_where_its_figures_come_from(count: int, words: str, plan: Plan, capsys: Capture) -> None:
    render.show_plan(replace(plan, measured=count))
    assert words in capsys.readouterr().out


def test_d1_a_retried_file_is_shown(capsys: Capture) -> None:
    result = BuildResult("sm100", (), 1, 0, 0, 5.0)
    render.show_result(replace(result, retried=("flash_mla: a[1].cu",)))
    assert "killed for memory, then compiled alone: flash_mla: a[1].cu" in capsys.readouterr().out

    render.show_result(result)
    assert "killed" not in capsys.readouterr().out


def test_progress_is_one_line_a_file_on_standard_error(plan: Plan, capsys: Capture) -> None:
    with render.progress(plan, quiet=False) as observer:
        observer.news("waiting for [somebody]")
        observer.done(Measured("/s/a.cpp", 41.7, 2150, False, Unit("deep_ep: a.cpp", 42, 2150)))
        observer.done(Measured("/b/cmake_pch.hxx.cxx", 9.0, 1000, False, None))
        observer.done(Measured("/s/b.cpp", 0.1, 10, True, Unit("deep_ep: b.cpp", 18, 1400)))

    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0] == "waiting for [somebody]"
    assert lines[1].startswith("[1/3] deep_ep: a.cpp (42 s, 2.1 GiB); about ")
    assert lines[2].startswith("[2/3] deep_ep: b.cpp (cache); about ")
    assert len(lines) == 3, "a precompiled header is no file of the plan"


def test_with_json_progress_is_silent(plan: Plan, capsys: Capture) -> None:
    with render.progress(plan, quiet=True) as observer:
        observer.news("waiting")
        observer.done(Measured("/s/a.cpp", 41.7, 2150, False, Unit("deep_ep: a.cpp", 42, 2150)))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (5.4, "5 s"), (89, "89 s"), (90, "1 min 30 s"), (3661, "61 min 01 s"), (119.9, "1 min 59 s")],
)
def test_times_are_readable(seconds: float, text: str) -> None:
    assert render._minutes(seconds) == text
