"""Finding CANN, in made-up trees of its three layouts (case G2)."""

from __future__ import annotations

import platform
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.version import Version

from archwright import cann
from archwright.cann import (
    VARIABLES,
    active_cann,
    cann_at,
    check_cann_floor,
    find_cann,
    owner_of,
    parse_release,
    usual_canns,
)
from archwright.errors import ArchwrightError

from . import canntree
from .canntree import LAYOUTS, STAND_IN, Layout, make_cann

no_cann, arm, good = canntree.no_cann, canntree.arm, canntree.good

pytestmark = pytest.mark.usefixtures("no_cann")


# ------------------------------------------------------------------------------------------------ one installation


@pytest.mark.parametrize(("layout", "version", "place"), LAYOUTS)
@pytest.mark.parametrize("processor", ["aarch64", "x86_64"])
def test_what_each_layout_holds(layout: Layout, version: str, place: str, processor: str, no_cann: Path) -> None:
    root = make_cann(no_cann / place, version, processor, layout)

    found = cann_at(root, "a test")

    assert (found.root, found.version, found.processor) == (root, version, processor)
    assert found.record == root / f"{processor}-linux" / "ascend_toolkit_install.info"
    assert found.host_folder == root / f"{processor}-linux"
    assert found.includes == (found.host_folder / "include", found.host_folder / "asc" / "include")
    assert (found.libraries / "libascendc_runtime.a").read_bytes() == b"!<arch>\n"
    assert (found.asc_cmake is None) == (layout == "8.x")
    assert found.set_env is not None
    assert found.bisheng is not None
    assert found.ld_lld is not None


@pytest.mark.parametrize(("layout", "version", "place"), LAYOUTS)
def test_programs_are_found_without_a_bin_folder(layout: Layout, version: str, place: str, no_cann: Path) -> None:
    root = make_cann(no_cann / place, version, layout=layout)
    (root / "bin").unlink()

    found = cann_at(root, "a test")

    assert found.bisheng is not None
    assert found.ld_lld == found.bisheng.with_name("ld.lld")


def test_the_compilers_of_these_trees_compile_nothing(good: Path) -> None:
    """Nothing that they could be taken to have made is left, and they say what they are."""
    answer = subprocess.run([good / "bin" / "bisheng", "-o", good / "x.o"], capture_output=True, text=True, check=False)
    assert answer.returncode
    assert STAND_IN in answer.stderr
    assert not (good / "x.o").exists()


@pytest.mark.parametrize("folder", ["lib64/cmake", "lib64/cmake/ASC", "compiler/tikcpp/ascendc_kernel_cmake"])
@pytest.mark.parametrize("name", ["ASCConfig.cmake", "asc-config.cmake"])
def test_the_cmake_package_asc(folder: str, name: str, good: Path) -> None:
    shutil.rmtree(good / "aarch64-linux" / "lib64" / "cmake")
    assert cann_at(good, "a test").asc_cmake is None
    (good / folder).mkdir(parents=True)
    (good / folder / name).touch()

    found = cann_at(good, "a test").asc_cmake

    assert found is not None
    assert (found / name).is_file()


def test_a_record_without_a_processor_or_no_record_at_all(good: Path) -> None:
    record = good / "aarch64-linux" / "ascend_toolkit_install.info"
    record.write_text("version=9.2.0\n")
    assert cann_at(good, "a test").processor == "aarch64"

    record.rename(good / record.name)
    assert cann_at(good, "a test").record == good / record.name

    (good / record.name).unlink()
    found = cann_at(good, "a test")
    assert (found.version, found.processor, found.record) == ("", "aarch64", None)


def test_of_two_processors_the_machines_own_is_taken(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = good / "x86_64-linux"
    shutil.copytree(good / "aarch64-linux", own)
    record = own / "ascend_toolkit_install.info"
    record.write_text(record.read_text().replace("aarch64", "x86_64"))
    assert cann_at(good, "a test").processor == "aarch64"

    monkeypatch.setattr(platform, "machine", lambda: "x86_64")

    assert cann_at(good, "a test").processor == "x86_64"
    assert owner_of(own) == owner_of(good / "aarch64-linux") == cann_at(good, "a test").identity


def test_a_program_that_cannot_be_run_is_none(good: Path) -> None:
    (good / "tools" / "bisheng_compiler" / "bin" / "bisheng").chmod(0o644)
    assert cann_at(good, "a test").bisheng is None


def test_a_folder_that_holds_nothing(tmp_path: Path) -> None:
    found = cann_at(tmp_path, "a test")
    assert (found.version, found.processor, found.record, found.bisheng) == ("", "", None, None)
    assert found.includes == ()
    assert found.asc_cmake is None
    assert found.activation == f"export ASCEND_HOME_PATH={tmp_path}"


# -------------------------------------------------------------------------------------------------- which one


def test_g2_the_active_environment_wins(no_cann: Path, tmp_path: Path) -> None:
    make_cann(no_cann / "cann", "9.9.0")
    first, second = (make_cann(tmp_path / name, "9.2.0") for name in ("first", "second"))

    assert find_cann({"ASCEND_HOME_PATH": str(first), "ASCEND_TOOLKIT_HOME": str(second)}) == cann_at(
        first, "ASCEND_HOME_PATH"
    )
    assert find_cann({"ASCEND_HOME_PATH": "", "ASCEND_TOOLKIT_HOME": str(second)}) == cann_at(
        second, "ASCEND_TOOLKIT_HOME"
    )
    assert active_cann({}) is None


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_that_names_no_folder_is_aw334(name: str, no_cann: Path, tmp_path: Path) -> None:
    """The one at its usual place is not taken instead."""
    make_cann(no_cann / "cann")
    with pytest.raises(ArchwrightError) as caught:
        find_cann({name: str(tmp_path / "gone")})
    assert caught.value.code == "AW334"
    assert name in caught.value.found


def test_a_relative_name_becomes_absolute_and_links_stay(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(good)
    monkeypatch.chdir(tmp_path)
    found = active_cann({"ASCEND_HOME_PATH": "link"})
    assert found is not None
    assert found.root == tmp_path / "link"


def test_usual_places_newest_first_and_each_once(no_cann: Path, tmp_path: Path) -> None:
    make_cann(no_cann / "cann-9.2.0-beta.2", "9.2.0-beta.2")
    make_cann(no_cann / "cann-9.1.0", "9.1.0", layout="9.1")
    (no_cann / "cann").symlink_to("cann-9.1.0")
    make_cann(no_cann / "ascend-toolkit" / "latest", "8.5.0", layout="8.x")
    make_cann(tmp_path / "home" / "Ascend" / "cann-9.2.0", "9.2.0")
    (no_cann / "cann-recipes").mkdir()

    assert [c.version for c in usual_canns()] == ["9.2.0", "9.2.0-beta.2", "9.1.0", "8.5.0"]
    assert [c.version for c in usual_canns(home=tmp_path)] == ["9.2.0-beta.2", "9.1.0", "8.5.0"]
    assert {c.origin for c in usual_canns()} == {"its usual place"}


def test_the_only_one_at_a_usual_place_is_taken(no_cann: Path) -> None:
    assert find_cann({}) is None
    make_cann(no_cann / "cann-9.2.0")
    (no_cann / "cann").symlink_to("cann-9.2.0")

    found = find_cann({})

    assert found is not None
    assert found.root == no_cann / "cann"


def test_several_and_none_active_is_aw337(no_cann: Path) -> None:
    for version in ("9.1.0", "9.2.0"):
        make_cann(no_cann / f"cann-{version}", version)

    with pytest.raises(ArchwrightError) as caught:
        find_cann({})

    assert caught.value.code == "AW337"
    for version in ("9.1.0", "9.2.0"):
        assert f"source {no_cann}/cann-{version}/set_env.sh" in caught.value.fix


def test_a_user_without_a_home(no_cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert cann.usual_tops() == (no_cann,)


# --------------------------------------------------------------------------------------------------- versions


def test_versions_as_cann_writes_them_are_in_order() -> None:
    in_order = [
        *("8.0.0.alpha002", "8.0.0.beta1", "8.0.0", "8.3.RC1", "8.3.RC2", "8.5.0.RC1", "8.5.0", "8.5.2"),
        *("9.0.0-beta.2", "9.0.0", "9.1.0-beta.1", "9.1.0", "9.2.0-alpha.1", "9.2.0-beta.2", "9.2.0", "9.2.1", "10.0"),
    ]
    parsed = [parse_release(version) for version in in_order]
    assert all(parsed)
    assert parsed == sorted(parsed, key=lambda version: version or Version("0"))


@pytest.mark.parametrize("version", ["8.0.T6", "8.0.RC2.alpha003"])
def test_suffixes_that_nobody_knows_come_before_the_release(version: str) -> None:
    found = parse_release(version)
    assert found is not None
    assert Version("7.9") < found < Version("8.0")


@pytest.mark.parametrize("version", ["", "unknown", "V100R001"])
def test_no_number_is_no_version(version: str) -> None:
    assert parse_release(version) is None


@pytest.mark.parametrize(
    ("version", "passes"),
    [("9.2.0", True), ("9.2.1", True), ("9.2.0-beta.2", True), ("", True), ("9.1.0", False), ("8.5.0.RC1", False)],
)
def test_the_floor(version: str, passes: bool, tmp_path: Path) -> None:
    found = replace(cann_at(tmp_path, "a test"), version=version)
    if passes:
        check_cann_floor(found, Version("9.2"))
        return
    with pytest.raises(ArchwrightError) as caught:
        check_cann_floor(found, Version("9.2"))
    assert caught.value.code == "AW336"
    assert ("910_95" in caught.value.why) == version.startswith("8.")
