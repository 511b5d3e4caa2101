"""Recipes and the matrix of cells (case F3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from archwright.components import CellState, Component, components, matrix, select_cells
from archwright.errors import ArchwrightError, Exit
from archwright.targets import target_table

MakeRecipe = Callable[..., Component]


def select(target: str, *names: str, processor: str = "x86_64", experimental: bool = False) -> list[str]:
    chosen = select_cells(target_table().targets[target], names, processor, experimental=experimental)
    return [component.name for component in chosen]


def error_of(target: str, *names: str, processor: str = "x86_64", experimental: bool = False) -> ArchwrightError:
    with pytest.raises(ArchwrightError) as caught:
        select(target, *names, processor=processor, experimental=experimental)
    return caught.value


def test_the_matrix_is_whole() -> None:
    cells = Counter((c.component, c.target, c.processor) for c in matrix())

    assert len(cells) == 7 * 3 * 2
    assert set(cells.values()) == {1}
    packs = {"deep_gemm_aot", "deep_ep_aot"}
    assert {c[0] for c in cells} == {"flash_mla", "deep_gemm", "deep_ep", "engine", "tilelang_ops"} | packs


@pytest.mark.parametrize("cell", matrix(), ids=lambda c: f"{c.component}-{c.target}-{c.processor}")
def test_every_cell_has_a_state_and_its_reason(cell: object) -> None:
    from archwright.components import Cell

    assert isinstance(cell, Cell)
    assert cell.state in set(CellState)
    assert bool(cell.reason) == (cell.state is CellState.REFUSED)
    assert not (cell.pending and cell.state is CellState.REFUSED), "a refused cell is not pending"
    assert cell.available == (cell.state is not CellState.REFUSED and not cell.pending)
    if not cell.available:
        assert len(cell.reason or cell.pending) > 20


def test_an_experimental_target_has_no_official_cells() -> None:
    for cell in matrix():
        if cell.target == "sm90":
            assert cell.state in (CellState.EXPERIMENTAL, CellState.REFUSED)
        else:
            assert cell.state is not CellState.EXPERIMENTAL


def test_f3_every_gap_of_aarch64_is_named() -> None:
    gaps = [c for c in matrix() if c.processor == "aarch64" and (c.target != "ascend950" or not c.available)]

    assert len(gaps) == 18, "where CANN is, are mostly such machines: nothing is withheld from them"
    for cell in gaps:
        assert not cell.available
        assert "aarch64" in cell.pending or "issue" in cell.pending or cell.reason


def test_f3_asking_for_aarch64_names_the_gap() -> None:
    error = error_of("sm100", processor="aarch64")

    assert error.code == "AW105"
    assert "aarch64" in error.found
    assert "aarch64" in error.why or "issue" in error.why


def test_without_names_all_cells_that_can_be_built() -> None:
    assert select("sm100") == ["deep_ep", "deep_gemm", "engine", "flash_mla"]


def test_names_keep_their_order_and_repeats_do_not_build_twice() -> None:
    assert select("sm100", "engine", "deep_ep", "engine") == ["engine", "deep_ep"]


def test_what_no_such_processor_has_built_is_refused() -> None:
    error = error_of("sm100", "engine", processor="aarch64")

    assert error.code == "AW105"
    assert error.exit is Exit.REFUSED == 3


def test_sm90_without_names_wants_the_flag_and_then_builds_what_can_be_built() -> None:
    assert error_of("sm90").code == "AW106"
    assert select("sm90", experimental=True) == ["deep_ep", "deep_gemm", "engine"]


def test_packs_and_libraries_are_asked_for_apart() -> None:
    target = target_table().targets["sm100"]
    packs = ["deep_ep_aot", "deep_gemm_aot", "tilelang_ops"]
    assert [c.name for c in select_cells(target, (), "x86_64", packs=True)] == packs
    assert "deep_gemm_aot" not in select("sm100")
    error = error_of("sm100", "deep_gemm_aot")
    assert error.code == "AW109"
    assert "archwright aot sm100 deep_gemm_aot" in error.fix


def test_flash_mla_for_sm90_is_refused_with_the_reason() -> None:
    error = error_of("sm90", "flash_mla", experimental=True)

    assert error.code == "AW104"
    assert error.exit is Exit.REFUSED
    assert "Hopper" in error.why


@pytest.mark.parametrize("name", ["deep_gemm", "deep_ep"])
def test_cuda_only_archives_are_refused_for_ascend(name: str) -> None:
    error = error_of("ascend950", name)

    assert error.code == "AW104"
    assert "CUDA only" in error.why


def test_a_pending_cell_that_is_named_is_an_error_even_beside_good_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A requested cell is produced or is an error; it is never skipped."""
    recipes = dict(components())
    pending = tuple(replace(cell, pending="not built yet: issue 99") for cell in recipes["engine"].cells)
    recipes["engine"] = replace(recipes["engine"], cells=pending)
    monkeypatch.setattr("archwright.components.components", lambda: recipes)

    error = error_of("sm100", "deep_ep", "engine")

    assert error.code == "AW105"
    assert "engine" in error.found
    assert "issue 99" in error.why


def test_an_unknown_component_is_wrong_usage() -> None:
    error = error_of("sm100", "flashmla")

    assert error.code == "AW103"
    assert error.exit is Exit.USAGE
    assert "flash_mla" in error.needed


def test_an_experimental_cell_needs_the_word(make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe("0" * 64)
    monkeypatch.setattr("archwright.components.components", lambda: {"tiny": recipe})

    error = error_of("sm90", "tiny")
    assert error.code == "AW106"
    assert "--experimental" in error.fix

    assert select("sm90", "tiny", experimental=True) == ["tiny"]


def test_recipes_are_what_their_folders_say() -> None:
    for name, component in components().items():
        assert component.folder.name == name
        assert (component.folder / "component.toml").is_file()
        assert len({unit.path for unit in component.units}) == len(component.units)


def test_every_component_that_is_built_has_units_and_an_extension() -> None:
    for name in select("sm100"):
        component = components()[name]
        assert component.units
        assert component.extension
        assert component.torch, "B1: the wheel depends on torch"
        assert any(component.extension.rpartition(".")[2] in pattern for pattern in component.wheel_expect)


def test_device_code_is_known_by_its_suffix() -> None:
    assert components()["flash_mla"].has_device_code
    assert sum(unit.is_device for unit in components()["flash_mla"].units) == 29
    assert not components()["engine"].has_device_code


BAD = {
    "a target is missing": ('[cells.sm90]\nstate = "experimental"\n', ""),
    "a target too many": ("[cells.sm90]", "[cells.sm91]\nstate = 'build'\n[cells.sm90]"),
    "unknown key": ("license = ", "licence = "),
    "unknown key in a table": ("torch = true", "torch = true\ntorchvision = true"),
    "no reason for a refusal": ('reason = "for tests"', ""),
    "unknown state": ('state = "build"', 'state = "perhaps"'),
    "bad hash": ("{sha256}", "abc"),
    "absolute unit": ("csrc/api.cpp", "/csrc/api.cpp"),
    "unit outside": ("csrc/api.cpp", "../api.cpp"),
    "unit that is no source": ("csrc/api.cpp", "csrc/api.h"),
    "memory of nothing": ("mib = 100", "mib = 0"),
    "time below nothing": ("seconds = 1", "seconds = -1"),
    "text for a number": ("mib = 100", 'mib = "much"'),
    "another name than the folder's": ('name = "tiny"\ndist', 'name = "huge"\ndist'),
    "no TOML": ("schema = 1", "schema = "),
    "another schema": ("schema = 1", "schema = 2"),
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD.keys())
def test_a_recipe_that_is_not_valid_is_aw108(
    change: tuple[str, str], make_recipe: MakeRecipe, recipe_text: str
) -> None:
    assert change[0] in recipe_text

    with pytest.raises(ArchwrightError) as caught:
        make_recipe("0" * 64, text=recipe_text.replace(*change))

    assert caught.value.code == "AW108"
    assert "component.toml" in caught.value.found


def test_a_good_recipe_is_read(make_recipe: MakeRecipe) -> None:
    recipe = make_recipe("0" * 64)

    assert recipe.sha256 == "0" * 64
    assert recipe.units[0].path == "csrc/api.cpp"
    assert recipe.nccl is None
    assert len(recipe.cells) == 6
