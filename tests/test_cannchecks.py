"""What doctor says of CANN and torch_npu, in made-up trees (cases G2, G3 and G6)."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright import cann, cannchecks
from archwright.cann import cann_at, owner_of, system_wide_record
from archwright.cannchecks import check_cann, check_torch_npu
from archwright.environment import Environment
from archwright.findings import Finding, Level
from archwright.targets import target_table

from . import canntree
from .canntree import LAYOUTS, Layout, activate, make_cann

no_cann, arm, good = canntree.no_cann, canntree.arm, canntree.good

ASCEND = target_table().targets["ascend950"]

pytestmark = pytest.mark.usefixtures("no_cann")


def rows() -> dict[str, Finding]:
    found = list(check_cann(ASCEND))
    assert len({finding.check for finding in found}) == len(found), "each row has its own name"
    return {finding.check: finding for finding in found}


def assert_not_ok(finding: Finding, level: Level, code: str) -> None:
    assert (finding.level, finding.code) == (level, code)
    assert all((finding.found, finding.needed, finding.why, finding.fix))


def test_a_machine_without_cann_is_told_all_that_is_missing() -> None:
    found = rows()

    assert_not_ok(found["CANN"], Level.FAIL, "AW334")
    assert "CANN toolkit 9.2 or newer for aarch64" in found["CANN"].fix
    for check in ("bisheng", "ld.lld", "CANN headers", "CANN runtime"):
        assert_not_ok(found[check], Level.FAIL, "AW338")
    assert len(found) == 5


def test_a_whole_cann_that_is_sourced(good: Path) -> None:
    found = rows()

    assert {check: finding.level for check, finding in found.items() if finding.level is not Level.OK} == {}
    assert found["CANN"].found == f"{good} (named by ASCEND_HOME_PATH)"
    assert found["CANN version"].found == "9.2.0"
    assert found["CANN environment"].found == "sourced"
    assert found["bisheng"].found == f"{good}/bin/bisheng"


@pytest.mark.parametrize(("layout", "version", "place"), LAYOUTS)
def test_a_layout_is_one_cann_whatever_links_it_has(
    layout: Layout, version: str, place: str, no_cann: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_cann(no_cann / place, version, layout=layout)
    activate(root, monkeypatch)

    found = rows()

    assert found["one CANN"].level is Level.OK
    assert "set_env.sh" not in found
    assert found["CANN environment"].level is Level.OK
    assert found["CANN version"].level is (Level.NOTE if version.startswith("9.2") else Level.FAIL)
    assert found["CANN version"].code == "AW336"


@pytest.mark.parametrize(("layout", "version", "place"), LAYOUTS)
def test_the_scripts_of_these_trees_do_what_activate_does(
    layout: Layout, version: str, place: str, no_cann: Path
) -> None:
    root = make_cann(no_cann / place, version, layout=layout)
    line = f"{cann_at(root, '').activation} && echo $ASCEND_HOME_PATH && command -v bisheng"
    answer = subprocess.run(["sh", "-c", line.replace("source", ".")], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == [str(root), f"{root}/bin/bisheng"]


def test_a_beta_is_not_the_release(good: Path) -> None:
    record = good / "aarch64-linux" / "ascend_toolkit_install.info"
    record.write_text("version=9.2.0-beta.2\narch=aarch64\n")

    finding = rows()["CANN version"]

    assert_not_ok(finding, Level.NOTE, "AW336")
    assert finding.found == "9.2.0-beta.2: a pre-release of 9.2.0"
    assert "not the release" in finding.why


def test_a_version_that_no_record_says(good: Path) -> None:
    (good / "aarch64-linux" / "ascend_toolkit_install.info").unlink()

    found = rows()

    assert_not_ok(found["CANN version"], Level.NOTE, "AW336")
    assert found["one CANN"].level is Level.OK, "its own bisheng on PATH is not another's"


def test_g3_found_and_not_sourced(no_cann: Path) -> None:
    root = make_cann(no_cann / "cann")

    finding = rows()["CANN environment"]

    assert_not_ok(finding, Level.NOTE, "AW335")
    assert "libhccl.so" in finding.why
    assert [str(repair) for repair in finding.repairs] == [f"source {root}/set_env.sh"]


@pytest.mark.parametrize(("name", "word"), [("LD_LIBRARY_PATH", "LD_LIBRARY_PATH"), ("PATH", "bisheng")])
def test_g3_half_sourced(name: str, word: str, good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/usr/lib:/usr/bin")
    finding = rows()["CANN environment"]
    assert_not_ok(finding, Level.NOTE, "AW335")
    assert word in finding.found


def test_a_variable_that_names_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "gone"))
    found = rows()
    assert_not_ok(found["CANN"], Level.FAIL, "AW334")
    assert str(found["CANN"].repairs[0]) == "unset ASCEND_HOME_PATH"
    assert len(found) == 1


def test_several_and_none_active(no_cann: Path) -> None:
    for version in ("9.1.0", "9.2.0"):
        make_cann(no_cann / f"cann-{version}", version)
    found = rows()
    assert_not_ok(found["CANN"], Level.FAIL, "AW337")
    assert found["CANN"].repairs == ()


LEADS: dict[str, Callable[[Path], str]] = {
    "ASCEND_TOOLKIT_HOME": str,
    "ASCEND_OPP_PATH": lambda other: str(other / "opp"),
    "BISHENG_HOME": lambda other: str(other / "tools" / "bisheng_compiler"),
    "LD_LIBRARY_PATH": lambda other: f"{other}/lib64:{os.environ['LD_LIBRARY_PATH']}:",
    "PATH": lambda other: f"{other}/bin:{os.environ['PATH']}",
}


@pytest.mark.parametrize("name", LEADS)
def test_g2_what_leads_to_another_cann_is_a_conflict(
    name: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = make_cann(tmp_path / "other", "9.1.0")
    monkeypatch.setenv(name, LEADS[name](other))

    found = rows()

    assert_not_ok(found["one CANN"], Level.FAIL, "AW337")
    assert name in found["one CANN"].found
    assert str(other) in found["one CANN"].found
    assert found["CANN"].found.startswith(f"{good} ")


def test_the_driver_is_no_other_cann(good: Path, no_cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{no_cann}/driver/lib64:{good}/lib64", prepend=":")
    assert rows()["one CANN"].level is Level.OK


def test_a_bisheng_of_no_cann_is_a_conflict(
    good: Path, script: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = script("bisheng", "exit 1")
    monkeypatch.setenv("PATH", str(alone.parent), prepend=":")
    assert str(alone) in rows()["one CANN"].found


SYSTEM_WIDE = {
    "another": ("Install_Path={top}\nToolkit_InstallPath={top}/cann-9.1.0\n", True),
    "another version": ("Toolkit_InstallPath={top}/cann-9.2.0\nToolkit_Version=9.1.0\n", True),
    "the same": ("Install_Path={top}\nToolkit_InstallPath={top}/cann-9.2.0\n", False),
    "the folder above": ("Install_Path={top}\n", False),
    "nothing": ("\n", False),
}


@pytest.mark.parametrize(("text", "differs"), SYSTEM_WIDE.values(), ids=SYSTEM_WIDE.keys())
def test_g2_the_system_wide_record_never_wins(text: str, differs: bool, good: Path, no_cann: Path) -> None:
    make_cann(no_cann / "cann-9.1.0", "9.1.0")
    cann._SYSTEM_RECORD.parent.mkdir()
    cann._SYSTEM_RECORD.write_text(text.format(top=no_cann))

    found = rows()

    assert found["CANN"].found.startswith(f"{good} ")
    assert ("system-wide CANN" in found) == differs
    if differs:
        assert_not_ok(found["system-wide CANN"], Level.NOTE, "AW337")
        assert str(cann._SYSTEM_RECORD) in found["system-wide CANN"].found


def test_without_a_system_wide_record_there_is_none() -> None:
    assert system_wide_record() is None
    assert owner_of(Path("/usr/bin")) is None


@pytest.mark.parametrize("gone", [True, False])
def test_a_cann_that_was_moved(gone: bool, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(good, moved, symlinks=True)
    if gone:
        shutil.rmtree(good)
    activate(moved, monkeypatch)

    finding = rows()["set_env.sh"]

    assert_not_ok(finding, Level.NOTE, "AW341")
    assert str(good) in finding.found
    assert ("is not there" in finding.found) == gone
    assert str(finding.repairs[0]) == f"export ASCEND_HOME_PATH={moved}"


def test_the_script_beside_latest_may_name_another_version(no_cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = no_cann / "ascend-toolkit"
    make_cann(top / "latest", "8.5.0", layout="8.x")
    make_cann(top / "other", "8.3.RC2", layout="8.x")
    (top / "set_env.sh").write_text(f"export ASCEND_TOOLKIT_HOME={top}/latest\n")
    activate(top / "8.3.RC2", monkeypatch)

    assert "set_env.sh" not in rows()


PARTS = {
    "bisheng": "tools/bisheng_compiler/bin/bisheng",
    "ld.lld": "tools/bisheng_compiler/bin/ld.lld",
    "CANN headers": "aarch64-linux/asc/include",
    "CANN runtime": "aarch64-linux/lib64/libascendc_runtime.a",
    "CMake package ASC": "aarch64-linux/lib64/cmake",
}


@pytest.mark.parametrize("check", PARTS)
def test_a_part_that_is_missing(check: str, good: Path) -> None:
    (good / PARTS[check]).rename(good / "away")

    found = rows()

    level = Level.NOTE if check == "CMake package ASC" else Level.FAIL
    assert_not_ok(found[check], level, "AW338")
    assert str(good) in found[check].found
    assert [name for name in PARTS if found[name].level is not Level.OK] == [check]


def test_a_cann_for_another_processor(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    finding = rows()["CANN processor"]
    assert_not_ok(finding, Level.FAIL, "AW339")
    assert "aarch64" in finding.found


# ------------------------------------------------------------------------------------------------ torch_npu


@pytest.fixture
def torch_npu(environment: Environment) -> Callable[..., list[Finding]]:
    """What is said of an installed torch_npu of this version and tag."""

    def install(version: str, tag: str = "cp312-cp312-manylinux_2_28_aarch64") -> list[Finding]:
        info = environment.runtime_site / f"torch_npu-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: torch_npu\nVersion: {version}\n")
        (info / "WHEEL").write_text(f"Wheel-Version: 1.0\nTag: {tag}\n")
        (environment.runtime_site / "torch_npu").mkdir()
        return list(check_torch_npu(environment, ASCEND))

    return install


@pytest.mark.parametrize("version", ["2.13.0rc1", "2.13.0", "2.13.0.post2"])
def test_torch_and_torch_npu_that_pair(version: str, torch_npu: Callable[..., list[Finding]]) -> None:
    (finding,) = torch_npu(version)
    assert (finding.level, finding.code) == (Level.OK, "AW340")
    assert "site-packages/torch_npu" in finding.found


def test_torch_and_torch_npu_that_do_not_pair(torch_npu: Callable[..., list[Finding]]) -> None:
    (finding,) = torch_npu("2.12.0")
    assert_not_ok(finding, Level.FAIL, "AW340")
    assert "torch_npu 2.12.0, with torch 2.13.0" in finding.found
    assert str(finding.repairs[0]).endswith("env create ascend950 --again")


def test_an_environment_without_torch_npu(environment: Environment) -> None:
    (finding,) = check_torch_npu(environment, ASCEND)
    assert_not_ok(finding, Level.FAIL, "AW340")
    assert "missing" in finding.found


@pytest.mark.parametrize(
    ("glibc", "fits"), [("2.39", True), ("2.34", True), ("2.31", False), ("2.9", False), ("", True)]
)
def test_g6_a_torch_npu_that_needs_a_newer_c_library(
    glibc: str, fits: bool, torch_npu: Callable[..., list[Finding]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cannchecks, "glibc_version", lambda: glibc)

    found = torch_npu("2.13.0", "cp312-cp312-manylinux_2_34_aarch64")

    assert [finding.check for finding in found[1:]] == ([] if fits else ["C library for torch_npu"])
    if not fits:
        assert_not_ok(found[1], Level.FAIL, "AW324")
        assert "2.34" in found[1].needed
