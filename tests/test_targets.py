"""The target table: cases A2 and A7."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from archwright import targets
from archwright.errors import ArchwrightError, Exit
from archwright.targets import Tier, select_gencodes, target_table

TABLE = Path(targets.__file__).with_name("targets.toml")


def test_the_three_targets_and_their_tiers() -> None:
    tiers = {name: target.tier for name, target in target_table().targets.items()}
    assert tiers == {"sm100": Tier.OFFICIAL, "sm90": Tier.EXPERIMENTAL, "ascend950": Tier.OFFICIAL}


@pytest.mark.parametrize(
    "asked",
    [
        *("rtx4090", "RTX 4090", "rtx5090", "RTX 5090", "GeForce RTX 4090", "NVIDIA GeForce RTX 5090"),
        *("nvidia rtx pro 6000", "RTX PRO 6000 Blackwell Server Edition", "L40S", "L4", "GB10"),
        *("sm_120", "sm120", "sm_120a", "sm_120f", "sm_121", "SM_120", "sm_89", "sm89"),
        *("sm_80", "sm_70", "sm86", "A100", "V100", "T4"),
        *("ascend910b", "Ascend 910B", "910b", "910", "Ascend910_93", "ascend310p", "atlas 300"),
        *("MI300X", "gfx942", "rocm"),
    ],
)
def test_a7_other_devices_are_refused_with_reason_and_advice(asked: str) -> None:
    with pytest.raises(ArchwrightError) as caught:
        target_table().find(asked)

    assert caught.value.code == "AW102"
    assert caught.value.exit is Exit.REFUSED == 3
    assert asked in caught.value.found
    assert caught.value.why
    assert any(name in caught.value.fix for name in target_table().targets)


@pytest.mark.parametrize("asked", ["", "sm", "sm_999", "tpu", "sm1000", "10.0a", "rtx\n4090;", "🦜"])
def test_an_unknown_target_is_wrong_usage(asked: str) -> None:
    with pytest.raises(ArchwrightError) as caught:
        target_table().find(asked)

    assert caught.value.code in ("AW101", "AW102")
    if "rtx" not in asked:
        assert caught.value.code == "AW101"
        assert caught.value.exit is Exit.USAGE == 2
        for name in target_table().targets:
            assert name in caught.value.needed


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        *(("h100", "sm90"), ("H100", "sm90"), ("NVIDIA H200", "sm90"), ("sm_90a", "sm90"), ("Hopper", "sm90")),
        *(("b200", "sm100"), ("GB300", "sm100"), ("sm_100a", "sm100"), ("sm_103a", "sm100"), ("SM100", "sm100")),
        *(("Ascend 950PR", "ascend950"), ("dav-3510", "ascend950"), ("A5", "ascend950")),
        *(("910_95", "ascend950"), ("Ascend910_95", "ascend950"), ("Ascend910_9599", "ascend950")),
        *(
            ("Ascend950", "ascend950"),
            ("Ascend950PR_9599", "ascend950"),
            ("ascend950dt_9582", "ascend950"),
            ("Ascend950DT_950x", "ascend950"),
        ),
    ],
)
def test_another_name_of_a_target_suggests_it(asked: str, meant: str) -> None:
    """`910_95` is what Ascend 950 was called earlier: it is not the 910."""
    with pytest.raises(ArchwrightError) as caught:
        target_table().find(asked)

    assert caught.value.code == "AW101"
    assert caught.value.fix == f"say `{meant}`"


@pytest.mark.parametrize("asked", ["Ascend960PR_9699", "ascend950xx_1", "ascend95", "ascend9500"])
def test_g1_an_unknown_soc_is_answered_with_what_is_supported(asked: str) -> None:
    with pytest.raises(ArchwrightError) as caught:
        target_table().find(asked)

    assert caught.value.code == "AW101"
    for device in ("Ascend 950PR", "Ascend 950DT", "B200", "H100"):
        assert device in caught.value.needed


@pytest.mark.parametrize("soc", ["Ascend950PR_9599", "ascend950dt_95A2", "ascend950", "Ascend910_9599"])
def test_the_one_table_of_chips_leads_to_the_target(soc: str) -> None:
    """The reader of device code asks it too (tests/test_cce.py)."""
    found = target_table().of_soc(soc)
    assert found is not None
    assert (found.name, list(found.devices)) == ("ascend950", ["dav-3510"])


@pytest.mark.parametrize("soc", ["", "ascend910b1", "Ascend910_9391", "ascend950xx_1", "ascend9500", "ascend310p3"])
def test_other_chips_have_no_target(soc: str) -> None:
    assert target_table().of_soc(soc) is None


def test_names_of_chips_are_no_others_name() -> None:
    """No SoC name is refused, and no alias is one: each name leads to one place."""
    table = target_table()
    for name in ("ascend950", "ascend950pr9599", "ascend950dt9582", "ascend91095", "ascend9109599", "91095"):
        assert not [r.what for r in table.refused if r(name)]
        assert name not in table.aliases


@given(st.text(max_size=30))
def test_whatever_is_asked_is_a_target_or_an_error_of_ours(asked: str) -> None:
    try:
        assert target_table().find(asked).name == asked
    except ArchwrightError as error:
        assert error.code in ("AW101", "AW102")


def test_a2_gencodes_with_and_without_suffix_are_different_things() -> None:
    known = {g.name: g for t in target_table().targets.values() for g in t.gencodes}

    assert known["sm_100a"].flag == "arch=compute_100a,code=sm_100a"
    assert known["sm_100a"].runs_on == ("10.0",)
    assert known["sm_103a"].runs_on == ("10.3",), "10.0a code does not run on a B300"
    assert known["sm_90a"].flag == "arch=compute_90a,code=sm_90a"


def test_a2_sm100_covers_all_of_its_devices() -> None:
    """A default build has a cubin for every device that the target names."""
    for target in target_table().targets.values():
        if target.gencodes:
            assert {c for g in target.gencodes for c in g.runs_on} == set(target.devices)


@pytest.mark.parametrize("asked", ["sm_100", "sm_100f", "sm_90a", "100a", "SM_100A", "compute_100a", ""])
def test_a2_a_gencode_that_the_target_lacks_is_aw107(asked: str) -> None:
    with pytest.raises(ArchwrightError) as caught:
        select_gencodes(target_table().targets["sm100"], ("sm_100a", asked))

    assert caught.value.code == "AW107"
    assert caught.value.exit is Exit.USAGE
    assert f"'{asked}'" in caught.value.found


def test_gencodes_keep_the_tables_order() -> None:
    sm100 = target_table().targets["sm100"]

    def names(*asked: str) -> list[str]:
        return [g.name for g in select_gencodes(sm100, asked)]

    assert names() == ["sm_100a", "sm_103a"]
    assert names("sm_103a") == ["sm_103a"]
    assert names("sm_103a", "sm_100a", "sm_103a") == ["sm_100a", "sm_103a"]


def test_a_target_without_gencodes_says_so() -> None:
    with pytest.raises(ArchwrightError, match="none"):
        select_gencodes(target_table().targets["ascend950"], ("sm_100a",))


def test_every_gencode_floor_is_a_release() -> None:
    for target in target_table().targets.values():
        for gencode in target.gencodes:
            assert gencode.nvcc >= Version("12.0")


def test_every_alias_leads_to_a_target_and_is_not_refused() -> None:
    table = target_table()
    for alias, meant in table.aliases.items():
        assert meant in table.targets
        assert not [r.what for r in table.refused if r(alias)]


BROKEN: dict[str, Callable[[str], str]] = {
    "no TOML": lambda text: text + "\n[[[",
    "unknown key": lambda text: text.replace("schema = 1", "schema = 1\nsurprise = 2"),
    "unknown tier": lambda text: text.replace('tier = "experimental"', 'tier = "maybe"'),
    "bad gencode name": lambda text: text.replace("[gencodes.sm_90a]", "[gencodes.sm90]"),
    "gencode that is not in the table": lambda text: text.replace('gencodes = ["sm_90a"]', 'gencodes = ["sm_91a"]'),
    "alias of no target": lambda text: text.replace('h100 = "sm90"', 'h100 = "sm91"'),
    "another schema": lambda text: text.replace("schema = 1", "schema = 2"),
    "Ascend without a CANN": lambda text: text.replace('cann = "9.2"', ""),
    "CANN for NVIDIA": lambda text: text.replace('vendor = "nvidia"', 'vendor = "nvidia"\ncann = "9.2"', 1),
    "missing floor": lambda text: text.replace('CXXABI = "1.3.15"', 'CXX = "1"'),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
def test_a_table_that_is_not_valid_is_aw108(change: Callable[[str], str], tmp_path: Path) -> None:
    good = TABLE.read_text()
    path = tmp_path / "targets.toml"
    path.write_text(change(good))
    assert path.read_text() != good

    with pytest.raises(ArchwrightError) as caught:
        target_table(path)

    assert caught.value.code == "AW108"
    assert str(path) in caught.value.found


def test_the_table_that_is_shipped_is_valid_toml_with_comments_only() -> None:
    data = tomllib.loads(TABLE.read_text())
    assert data["python"] == "3.12"
    assert data["processors"] == {"x86_64": "2.28", "aarch64": "2.34"}
