"""Recipes as they are for Ascend, and what can be built for it without CANN."""

from __future__ import annotations

import json

import pytest

from archwright.cli import main
from archwright.components import components, select_cells
from archwright.errors import ArchwrightError
from archwright.targets import target_table

TARGETS = target_table().targets
ASCEND = TARGETS["ascend950"]


def test_a_recipe_has_an_edition_for_ascend_and_is_nvidias_otherwise() -> None:
    recipe = components()["flash_mla"]
    edition = recipe.of(ASCEND)

    assert recipe.of(TARGETS["sm100"]) is recipe
    assert (recipe.extension, edition.extension) == ("flash_mla.cuda", "flash_mla.npu")
    assert not [unit for unit in recipe.units if unit.path.endswith(".asc")]
    assert not [unit for unit in edition.units if unit.path.endswith(".cu")]
    assert recipe.driver and not edition.driver
    assert recipe.bundles and not edition.bundles, "no CUTLASS in Ascend's"
    assert edition.version == recipe.version


def test_a_recipe_without_one_is_the_same_for_everyone() -> None:
    assert components()["deep_ep"].of(ASCEND) is components()["deep_ep"]


def test_host_files_can_be_chosen_where_no_wheel_is_built_yet() -> None:
    chosen = select_cells(ASCEND, (), "x86_64", host_only=True)

    assert [component.name for component in chosen] == ["engine", "flash_mla"]
    assert [len(component.units) for component in chosen] == [13, 6]
    assert not any(unit.is_device for component in chosen for unit in component.units)


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (("build", "ascend950", "deep_ep", "--host-only"), "AW104", 3),
        (("build", "sm90", "engine", "--host-only"), "AW106", 3),
        (("build", "ascend950", "tilelang_ops", "--host-only"), "AW109", 2),
        (("build", "ascend950", "flash_mla"), "AW334", 4),
    ],
)
def test_what_is_refused_stays_refused(
    words: tuple[str, ...], code: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json"]) == status
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code


def test_without_cann_it_says_what_can_be_done(capsys: pytest.CaptureFixture[str]) -> None:
    main(["build", "ascend950", "--json"])

    fix = json.loads(capsys.readouterr().out)["error"]["fix"]
    assert all(words in fix for words in ("doctor ascend950", "ascend950 engine", "--host-only", "--lower-only"))


def test_the_engine_needs_no_cann(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "ascend950", "engine", "--plan", "--json"]) == 0


def test_a_stale_variable_stops_a_lowering_before_it_begins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", "/nonexistent")
    assert main(["aot", "ascend950", "--lower-only", "--plan", "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "AW334"

    assert main(["build", "ascend950", "--host-only", "--plan", "--json"]) == 0


def test_the_plan_of_host_files_has_no_device_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "ascend950", "--host-only", "--plan", "--json"]) == 0

    plan = json.loads(capsys.readouterr().out)
    assert (plan["host_files"], plan["device_files"]) == (19, 0)


def test_generated_kernels_have_no_host_files() -> None:
    with pytest.raises(ArchwrightError, match="AW109"):
        components()["tilelang_ops"].host_only  # noqa: B018
