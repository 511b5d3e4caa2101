"""Costs of compiles: recorded by builds, used by plans, and never more than a record (case D1)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from archwright import measured as measured_module
from archwright.components import Component, Unit, components
from archwright.environment import Environment
from archwright.measured import Toolchain, find_toolchain, measured_units, remember, scaled_units, units_for
from archwright.pool import Measured
from archwright.sources import sha256_of
from archwright.targets import target_table

SM100 = target_table().targets["sm100"]
ONE = Toolchain("13.2.86", "14.2.0", ("sm_100a",))
BOTH = replace(ONE, gencodes=("sm_100a", "sm_103a"))
TREE = Path("/sources/tiny")

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def mixed() -> Component:
    """Two device files and a host file."""
    units = (Unit("a.cu", 100, 5000), Unit("b.cu", 50, 2000), Unit("api.cpp", 20, 1000))
    return replace(components()["flash_mla"], units=units)


def compiled(path: str, seconds: float = 3, mib: int = 1000, *, cached: bool = False) -> Measured:
    return Measured(str(TREE / path), seconds, mib, cached)


def record_of(cache: Path) -> Path:
    (record,) = cache.glob("measured/*/*.json")
    return record


def test_what_was_measured_is_used_and_the_rest_is_the_recipes(mixed: Component) -> None:
    remember(ONE, mixed, TREE, [compiled("a.cu", 7.04, 4000)])

    assert units_for(mixed, SM100.gencodes[:1], ONE) == (Unit("a.cu", 7.0, 4120), *mixed.units[1:])
    assert list(measured_units(mixed, ONE)) == ["a.cu"]


def test_without_a_toolchain_or_a_record_it_is_the_recipe(mixed: Component) -> None:
    assert units_for(mixed, SM100.gencodes, None) == scaled_units(mixed, SM100.gencodes)
    assert units_for(mixed, SM100.gencodes, BOTH) == scaled_units(mixed, SM100.gencodes)


def test_a_measurement_for_two_gencodes_is_not_multiplied_and_not_used_for_one(mixed: Component) -> None:
    remember(BOTH, mixed, TREE, [compiled("a.cu", 180)])

    assert units_for(mixed, SM100.gencodes, BOTH)[0].seconds == 180
    assert units_for(mixed, SM100.gencodes, BOTH)[1].seconds == 100, "twice the recipe's"
    assert units_for(mixed, SM100.gencodes[:1], ONE)[0].seconds == 100


@pytest.mark.parametrize("other", [replace(ONE, nvcc="13.3.1"), replace(ONE, gcc="15.1.0")])
def test_another_compiler_has_costs_of_its_own(other: Toolchain, mixed: Component) -> None:
    remember(ONE, mixed, TREE, [compiled("a.cu")])
    assert measured_units(mixed, other) == {}


def test_host_code_costs_the_same_for_any_gencodes() -> None:
    engine = components()["engine"]
    path = engine.units[0].path
    remember(ONE, engine, TREE, [compiled(path)])
    assert list(measured_units(engine, BOTH)) == [path]


def test_answers_of_the_compiler_cache_and_other_files_are_not_recorded(mixed: Component, cache: Path) -> None:
    others = [compiled("cmake_pch.hxx.cxx"), Measured("/elsewhere/a.cu", 1, 1, False)]
    remember(ONE, mixed, TREE, [compiled("a.cu", 0.1, 20, cached=True), *others])
    assert list(cache.rglob("*.json")) == []

    remember(ONE, mixed, TREE, [compiled("b.cu"), compiled("a.cu", cached=True)])
    assert list(measured_units(mixed, ONE)) == ["b.cu"]


def test_later_builds_add_and_replace(mixed: Component) -> None:
    remember(ONE, mixed, TREE, [compiled("a.cu", 1), compiled("b.cu", 2)])
    remember(ONE, mixed, TREE, [compiled("b.cu", 5), compiled("api.cpp", 6)])
    assert [unit.seconds for unit in units_for(mixed, SM100.gencodes[:1], ONE)] == [1, 5, 6]


def test_costs_of_another_version_of_the_source_are_stale(mixed: Component) -> None:
    newer = replace(mixed, version="9.9")
    remember(ONE, mixed, TREE, [compiled("a.cu"), compiled("b.cu")])

    assert measured_units(newer, ONE) == {}

    remember(ONE, newer, TREE, [compiled("b.cu")])
    assert list(measured_units(newer, ONE)) == ["b.cu"]


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "null", '{"units": 3}', '{"version": "1.0.0", "units": [1]}', "\udcff", "{}"]
)
def test_a_damaged_record_is_ignored_and_replaced(damage: str, mixed: Component, cache: Path) -> None:
    remember(ONE, mixed, TREE, [compiled("a.cu")])
    record_of(cache).write_text(damage, errors="surrogateescape")

    assert measured_units(mixed, ONE) == {}

    remember(ONE, mixed, TREE, [compiled("b.cu")])
    assert list(measured_units(mixed, ONE)) == ["b.cu"]


@pytest.mark.parametrize(
    "cost",
    [
        None,
        {},
        {"seconds": 1},
        *({"seconds": seconds, "mib": 10} for seconds in (-1, "9", float("nan"), float("inf"), None)),
        *({"seconds": 1, "mib": mib} for mib in (0, -5, 2.5, "10", 1 << 40, None)),
    ],
)
def test_d1_a_cost_that_makes_no_sense_is_ignored(cost: object, mixed: Component, cache: Path) -> None:
    """A negative size, say, would let everything run at once."""
    remember(ONE, mixed, TREE, [compiled("a.cu"), compiled("b.cu")])
    data = json.loads(record_of(cache).read_text())
    data["units"]["a.cu"] = cost
    record_of(cache).write_text(json.dumps(data))

    assert list(measured_units(mixed, ONE)) == ["b.cu"]


def test_a_cache_that_cannot_be_written_does_not_fail_the_build(mixed: Component, cache: Path) -> None:
    cache.mkdir()
    (cache / "measured").write_text("a file in the place of the folder")
    remember(ONE, mixed, TREE, [compiled("a.cu")])
    assert measured_units(mixed, ONE) == {}


WRITER = """
import sys
from pathlib import Path
from archwright.components import components
from archwright.measured import Toolchain, remember
from archwright.pool import Measured
component = components()["engine"]
toolchain = Toolchain("13.2.86", "14.2.0", ())
for unit in component.units[int(sys.argv[1]) :: 2]:
    remember(toolchain, component, Path("/t"), [Measured(f"/t/{unit.path}", 1, 100, False)])
"""


def test_two_builds_at_once_lose_nothing() -> None:
    engine = components()["engine"]
    both = [subprocess.Popen([sys.executable, "-c", WRITER, str(half)]) for half in (0, 1)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert len(measured_units(engine, Toolchain("13.2.86", "14.2.0", ()))) == len(engine.units)


@pytest.fixture
def made(cache: Path, environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """A complete environment in the cache, made from the project's locks of now."""
    folder = tmp_path / "project" / "envs" / "sm100"
    folder.mkdir(parents=True)
    for name in ("toolchain", "runtime"):
        (folder / f"{name}.lock").write_text(f"lock of {name}")
    (folder / "toolchain.in").write_text("no lock")
    monkeypatch.setattr(measured_module, "project_root", lambda: tmp_path / "project")
    locks = {name: sha256_of(folder / f"{name}.lock") for name in ("toolchain", "runtime")}
    made = replace(environment, locks=locks)
    write(cache, "sm100-1", made)
    return made


def write(cache: Path, name: str, environment: Environment) -> Path:
    record = cache / "envs" / name / "env.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps(environment.as_dict()))
    return record


def test_the_toolchain_is_known_before_a_build_when_its_environment_is_there(made: Environment) -> None:
    found = find_toolchain(SM100, SM100.gencodes)
    assert found == Toolchain.of(made, SM100.gencodes) == BOTH


def test_the_newest_environment_of_these_locks_counts(made: Environment, cache: Path) -> None:
    old = write(cache, "sm100-2", replace(made, gcc="13.1.0"))
    os.utime(old, (1, 1))
    write(cache, "sm100-3", replace(made, gcc="15.9.9", locks={}))
    write(cache, "sm90-4", replace(made, gcc="15.9.9"))
    half_made = write(cache, "sm100-5", made)
    half_made.write_text("{")
    assert find_toolchain(SM100, SM100.gencodes[:1]) == ONE


def test_without_an_environment_of_these_locks_none_is_known(made: Environment, tmp_path: Path) -> None:
    (tmp_path / "project" / "envs" / "sm100" / "toolchain.lock").write_text("newer")
    assert find_toolchain(SM100, SM100.gencodes) is None
