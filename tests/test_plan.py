"""Planning by memory and cores, cgroups included (case D1)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archwright import plan as plan_module
from archwright.components import Component, Unit, components
from archwright.errors import ArchwrightError, Exit
from archwright.measured import Toolchain, remember, scaled_units
from archwright.plan import (
    MEMORY_SHARE,
    Limit,
    available_cores,
    available_memory,
    make_plan,
    memory_limits,
)
from archwright.pool import Measured
from archwright.targets import target_table

pytestmark = pytest.mark.usefixtures("cache")

GIB = 2**30
SM100 = target_table().targets["sm100"]
ENGINE = components()["engine"]


def with_units(*units: Unit) -> Component:
    return replace(ENGINE, units=units)


@pytest.fixture
def cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A made-up cgroup file system, on a machine with 64 GiB free and 16 cores; returns a writer of its files."""
    base = tmp_path / "cgroup"
    own = tmp_path / "self"
    read = plan_module._read
    monkeypatch.setattr(plan_module, "_CGROUP", base)
    monkeypatch.setattr(plan_module, "_read", lambda p: read(own if p == Path("/proc/self/cgroup") else p))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("memory", (), {"available": 64 * GIB}))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))

    def write(line: str, folder: str = "", **files: object) -> Path:
        own.write_text(line + "\n")
        place = base / folder
        place.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (place / name.replace("__", ".")).write_text(f"{text}\n")
        return place

    return write


def test_without_limits_all_that_the_system_has(cgroup: Callable[..., Path]) -> None:
    cgroup("0::/", memory__max="max", memory__current=123, cpu__max="max 100000")

    assert available_memory() == 64 * GIB
    assert available_cores() == 16


def test_d1_a_cgroup_limit_of_version_2_is_honoured(cgroup: Callable[..., Path]) -> None:
    cgroup("0::/build.slice/job", "build.slice/job", memory__max=8 * GIB, memory__current=3 * GIB)
    assert available_memory() == 5 * GIB


def test_d1_a_limit_of_a_parent_is_honoured(cgroup: Callable[..., Path]) -> None:
    cgroup("0::/a/b/c", "a/b/c", memory__max="max", memory__current=0)
    cgroup("0::/a/b/c", "a", memory__max=4 * GIB, memory__current=1 * GIB, cpu__max="200000 100000")

    assert available_memory() == 3 * GIB
    assert available_cores() == 2


def test_d1_a_limit_of_version_1_is_honoured(cgroup: Callable[..., Path]) -> None:
    cgroup(
        "4:cpu,memory:/docker/1\n3:cpuset:/x\n0::/",
        "memory/docker/1",
        memory__limit_in_bytes=6 * GIB,
        memory__usage_in_bytes=2 * GIB,
    )
    assert available_memory() == 4 * GIB


def test_no_limit_of_version_1_is_no_limit(cgroup: Callable[..., Path]) -> None:
    cgroup("4:memory:/", "memory", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=5)
    assert memory_limits() == (Limit("available on this machine", 64 * GIB),)


def test_d1_page_cache_counts_as_free(cgroup: Callable[..., Path]) -> None:
    stat = f"anon 5\ninactive_file {2 * GIB}\nactive_file 7"
    cgroup("0::/", memory__max=8 * GIB, memory__current=7 * GIB, memory__stat=stat)
    assert available_memory() == 3 * GIB


def test_a_cgroup_that_is_over_its_limit_leaves_nothing(cgroup: Callable[..., Path]) -> None:
    cgroup("0::/", memory__max=1 * GIB, memory__current=2 * GIB)
    assert available_memory() == 0


@pytest.mark.parametrize(
    ("quota", "cores"), [("150000 100000", 2), ("50000 100000", 1), ("1000 100000", 1), ("3200000 100000", 16)]
)
def test_d1_a_cpu_quota_is_rounded_up(quota: str, cores: int, cgroup: Callable[..., Path]) -> None:
    cgroup("0::/", cpu__max=quota)
    assert available_cores() == cores


@pytest.mark.parametrize(("quota", "cores"), [(150000, 2), (-1, 16), (3200000, 16), ("", 16)])
def test_d1_a_cpu_quota_of_version_1_is_honoured(quota: object, cores: int, cgroup: Callable[..., Path]) -> None:
    line = "5:cpu,cpuacct:/docker/1\n4:memory:/other"
    cgroup(line, "cpu/docker/1", cpu__cfs_quota_us=quota, cpu__cfs_period_us=100000)
    assert available_cores() == cores


def test_d1_in_a_container_version_1_shows_its_own_group_as_the_root(cgroup: Callable[..., Path]) -> None:
    """/proc/self/cgroup has the host's path, which does not exist inside."""
    line = "5:cpu,cpuacct:/docker/1\n4:memory:/docker/1"
    cgroup(line, "cpu", cpu__cfs_quota_us=300000, cpu__cfs_period_us=100000)
    cgroup(line, "memory", memory__limit_in_bytes=5 * GIB, memory__usage_in_bytes=1 * GIB)
    assert (available_cores(), available_memory()) == (3, 4 * GIB)


@pytest.mark.parametrize(("high", "left"), [("max", 7), (6 * GIB, 5), (12 * GIB, 7)])
def test_d1_the_level_at_which_a_cgroup_is_slowed_down_counts(
    high: object, left: int, cgroup: Callable[..., Path]
) -> None:
    cgroup("0::/", memory__max=8 * GIB, memory__high=high, memory__current=1 * GIB)
    assert available_memory() == left * GIB


def test_d1_a_slow_down_without_a_limit_counts_too(cgroup: Callable[..., Path]) -> None:
    cgroup("0::/", memory__max="max", memory__high=6 * GIB, memory__current=1 * GIB)
    assert available_memory() == 5 * GIB


def test_without_any_cgroup_files_nothing_breaks(cgroup: Callable[..., Path]) -> None:
    cgroup("0::/gone/away")
    assert available_memory() == 64 * GIB


def test_this_machine_can_be_asked() -> None:
    assert 0 < available_memory() <= psutil.virtual_memory().total
    assert 1 <= available_cores() <= (os.cpu_count() or 1)


def test_d1_the_plan_stays_below_its_share_of_the_memory(cgroup: Callable[..., Path]) -> None:
    cgroup("0::/", memory__max=20 * GIB, memory__current=0)

    plan = make_plan(SM100, (ENGINE,), SM100.gencodes)

    assert plan.memory_mib == int(20 * 1024 * MEMORY_SHARE)
    assert MEMORY_SHARE == 0.85
    assert plan.peak_mib <= plan.memory_mib


def test_d1_a_unit_that_cannot_fit_is_aw309_before_anything_is_compiled(cgroup: Callable[..., Path]) -> None:
    cgroup("0::/", memory__max=4 * GIB, memory__current=0)

    with pytest.raises(ArchwrightError) as caught:
        make_plan(SM100, (components()["flash_mla"],), SM100.gencodes)

    assert caught.value.code == "AW309"
    assert caught.value.exit is Exit.UNFIT
    assert "3.4 GiB" in caught.value.found
    assert "fmha_cutlass_bwd_sm100.cu" in caught.value.needed
    assert "--memory" in caught.value.fix


def test_the_other_components_can_still_be_planned_there(cgroup: Callable[..., Path]) -> None:
    cgroup("0::/", memory__max=4 * GIB, memory__current=0)
    assert make_plan(SM100, (ENGINE,), SM100.gencodes).host_files == 13


def test_what_the_user_says_wins(cgroup: Callable[..., Path]) -> None:
    cgroup("0::/", memory__max=1 * GIB, memory__current=0)

    plan = make_plan(SM100, (ENGINE,), SM100.gencodes, jobs=3, memory_mib=16384)

    assert (plan.jobs, plan.memory_mib) == (3, 16384)


@pytest.mark.parametrize(
    ("text", "jobs", "decides"), [("4", 4, "MAX_JOBS"), ("40", 16, "cores of this process"), ("", 16, None)]
)
def test_d1_max_jobs_bounds_the_jobs(
    text: str, jobs: int, decides: str | None, cgroup: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    cgroup("0::/")
    monkeypatch.setenv("MAX_JOBS", text)

    plan = make_plan(SM100, (ENGINE,), SM100.gencodes)

    assert plan.jobs == jobs
    assert plan.jobs_limits[0] == Limit(decides or "cores of this process", jobs, decides=True)
    assert [limit.source for limit in plan.jobs_limits].count("MAX_JOBS") == bool(text)


@pytest.mark.parametrize("text", ["0", "-2", "many", "2.5", "\u0664"])
def test_max_jobs_that_is_no_number_is_aw109_unless_jobs_are_given(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", text)

    with pytest.raises(ArchwrightError) as caught:
        make_plan(SM100, (ENGINE,), SM100.gencodes, memory_mib=9000)
    assert caught.value.code == "AW109"
    assert f"MAX_JOBS={text}" in caught.value.found

    assert make_plan(SM100, (ENGINE,), SM100.gencodes, jobs=3, memory_mib=9000).jobs == 3


def test_d1_the_plan_says_what_was_found_and_what_decided(cgroup: Callable[..., Path]) -> None:
    cgroup("0::/a/b", "a/b", memory__max=40 * GIB, memory__current=10 * GIB, cpu__max="800000 100000")
    cgroup("0::/a/b", "a", memory__max=21 * GIB, memory__current=1 * GIB)

    plan = make_plan(SM100, (ENGINE,), SM100.gencodes)

    assert plan.jobs_limits == (
        *(Limit("CPU quota of cgroup /a/b", 8, decides=True), Limit("cores of this process", 16)),
    )
    assert plan.memory_limits == (
        Limit("cgroup /a (limit 21.0 GiB)", 20 * 1024, decides=True),
        Limit("cgroup /a/b (limit 40.0 GiB)", 30 * 1024),
        Limit("available on this machine", 64 * 1024),
    )
    assert json.loads(json.dumps(plan.as_dict()))["memory_limits"][0]["decides"] is True


def test_what_the_user_says_decides(cgroup: Callable[..., Path]) -> None:
    cgroup("0::/")
    plan = make_plan(SM100, (ENGINE,), SM100.gencodes, jobs=99, memory_mib=9000)
    assert plan.jobs_limits == (Limit("--jobs", 99, decides=True), Limit("cores of this process", 16))
    assert plan.memory_limits[0] == Limit("--memory", 9000, decides=True)


def test_d1_the_plan_uses_what_was_measured_and_says_how_much(cgroup: Callable[..., Path]) -> None:
    cgroup("0::/", memory__max=20 * GIB, memory__current=0)
    toolchain = Toolchain("13.2.86", "14.2.0", ("sm_100a",))
    component = with_units(Unit("a.cpp", 100, 1000), Unit("b.cpp", 10, 2000), Unit("c.cpp", 1, 1))
    trees = Path("/tree")
    remember(toolchain, component, trees, [Measured("/tree/a.cpp", 7, 3000, False)])

    plan = make_plan(SM100, (component,), SM100.gencodes, jobs=1, toolchain=toolchain)
    without = make_plan(SM100, (component,), SM100.gencodes, jobs=1)

    assert (plan.measured, plan.files, plan.largest, plan.cpu_seconds) == (1, 3, "a.cpp", 18)
    assert (without.measured, without.largest, without.cpu_seconds) == (0, "b.cpp", 111)

    remember(toolchain, component, trees, [Measured("/tree/a.cpp", 7, 30_000, False)])
    with pytest.raises(ArchwrightError) as caught:
        make_plan(SM100, (component,), SM100.gencodes, toolchain=toolchain)
    assert caught.value.code == "AW309"
    assert "measured here" in caught.value.needed


@pytest.mark.parametrize("memory", [0, -1, 100])
def test_d1_a_budget_of_nothing_is_not_a_budget_of_everything(memory: int) -> None:
    with pytest.raises(ArchwrightError) as caught:
        make_plan(SM100, (ENGINE,), SM100.gencodes, memory_mib=memory)
    assert caught.value.code == "AW309"


def test_the_plan_counts_files_and_names_the_largest() -> None:
    chosen = tuple(components()[name] for name in ("deep_ep", "flash_mla"))

    plan = make_plan(SM100, chosen, SM100.gencodes, jobs=2, memory_mib=20_000)

    assert (plan.host_files, plan.device_files) == (9, 29)
    assert plan.components == ("deep_ep", "flash_mla")
    assert plan.gencodes == ("sm_100a", "sm_103a")
    assert plan.largest.endswith("fmha_cutlass_bwd_sm100.cu")
    largest = sorted(unit.mib for component in chosen for unit in component.units)[-2:]
    assert plan.peak_mib == sum(largest)
    assert plan.as_dict()["tier"] == "official"


def test_two_gencodes_take_twice_as_long_for_device_code_only() -> None:
    flash_mla = components()["flash_mla"]

    one, two = (scaled_units(flash_mla, SM100.gencodes[:n]) for n in (1, 2))

    for before, after in zip(one, two, strict=True):
        assert after.seconds == before.seconds * (2 if before.is_device else 1)
        assert after.mib == before.mib


def test_units_that_cannot_run_together_are_counted_one_after_another() -> None:
    component = with_units(Unit("a.cpp", 100, 600), Unit("b.cpp", 100, 600), Unit("c.cpp", 10, 100))
    assert make_plan(SM100, (component,), (), jobs=8, memory_mib=1000).estimate == 200


units = st.lists(
    st.builds(Unit, st.sampled_from(["a.cpp", "b.cu"]), st.floats(0.1, 500), st.integers(1, 10_000)),
    min_size=1,
    max_size=30,
)


@given(units, st.integers(1, 64), st.integers(1, 20_000))
def test_d1_no_plan_exceeds_its_budget(made: list[Unit], jobs: int, memory: int) -> None:
    component = with_units(*made)
    try:
        plan = make_plan(SM100, (component,), SM100.gencodes, jobs=jobs, memory_mib=memory)
    except ArchwrightError as error:
        assert error.code == "AW309"
        assert max(unit.mib for unit in made) > memory
    else:
        assert plan.peak_mib <= memory
        assert plan.cpu_seconds / jobs <= plan.estimate <= plan.cpu_seconds + 1e-6
        assert plan.host_files + plan.device_files == len(made)
