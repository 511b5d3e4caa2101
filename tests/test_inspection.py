"""`archwright inspect` as people and pipelines see it: statuses, JSON, HTML, several wheels, comparison."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from archwright import inspection
from archwright.cli import main
from archwright.compare import compare
from archwright.components import Component
from archwright.errors import ArchwrightError
from archwright.inspection import Inspection, inspect_wheel, read_subject
from archwright.kernels import DeviceCode, KernelFacts
from archwright.report import html_page

VERSION = "1.0+cu132.sm100"
NAME = f"tiny-{VERSION}-cp312-cp312-manylinux_2_34_x86_64.whl"


@pytest.fixture(autouse=True)
def recipe(make_recipe: Callable[..., Component], cache: Path, monkeypatch: pytest.MonkeyPatch) -> Component:
    tiny = make_recipe("c" * 64)
    monkeypatch.setattr(inspection, "components", lambda: {"tiny": tiny})
    return tiny


@pytest.fixture
def wheel(tmp_path: Path, make_wheel: Callable[..., Path]) -> Path:
    return make_wheel(tmp_path / NAME)


@pytest.fixture
def bad(tmp_path: Path, make_wheel: Callable[..., Path]) -> Path:
    (tmp_path / "bad").mkdir()
    return make_wheel(tmp_path / "bad" / NAME, tamper=b"x")


def test_a_wheel_that_passes(wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(wheel)]) == 0
    out = capsys.readouterr().out
    assert NAME in out and "passed (13 gates)" in out
    assert "correct, performs: not verified here" in out, "case A3"


def test_a_gate_that_fails_is_status_1_with_its_code(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(bad)]) == 1
    out = capsys.readouterr().out
    assert "failed AW416" in out and "tiny/_C" in out


def test_json_holds_everything_and_nothing_else_is_printed(
    wheel: Path, bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", "--json", str(wheel), str(bad)]) == 1
    out, err = capsys.readouterr()
    data = json.loads(out)
    assert err == ""
    assert data["passed"] is False
    assert [entry["passed"] for entry in data["wheels"]] == [True, False]
    for entry in data["wheels"]:
        assert {"wheel", "sha256", "bytes", "findings", "kernels", "not_verified"} <= set(entry)
        assert len(entry["findings"]) == 13


def test_one_that_cannot_be_read_does_not_hide_the_others(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken-1.0-py3-none-any.whl"
    broken.write_bytes(b"no zip")
    assert main(["inspect", "--json", str(broken), str(wheel)]) == 1
    first, second = json.loads(capsys.readouterr().out)["wheels"]
    assert first["error"]["code"] == "AW420"
    assert second["passed"] is True


@pytest.mark.parametrize("words", [[], ["a.whl", "--compare", "b.whl", "c.whl"], ["--compare", "b.whl"], ["--bogus"]])
def test_wrong_usage_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *words]) == 2


def test_no_disassembler_is_a_finding_about_the_machine(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["inspect", "--sass", "--json", str(wheel)]) == 4
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "AW423"


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (VERSION, None),
        ("1.0+cu132.sm100.sm100a", None),
        ("1.0+cu132.sm90.exp", None),
        ("1.0+cu132.sm90", "AW420"),
        ("1.0+cu132.sm100.exp", "AW420"),
        ("1.0+cu132.sm100.sm90a", "AW420"),
        ("1.0+cu132.sm120", "AW420"),
        ("1.0+cu132", "AW420"),
        ("1.0", "AW420"),
        ("1.1+cu132.sm100", "AW420"),
        ("1.0+rocm.sm100", "AW420"),
    ],
)
def test_the_version_says_what_a_wheel_is_for(
    version: str, code: str | None, tmp_path: Path, make_wheel: Callable[..., Path]
) -> None:
    path = make_wheel(tmp_path / f"tiny-{version}-cp312-cp312-manylinux_2_34_x86_64.whl")
    if code is None:
        assert read_subject(path).target.name in version
    else:
        with pytest.raises(ArchwrightError, match=code):
            read_subject(path)


def test_aw103_a_wheel_that_no_recipe_makes(tmp_path: Path, make_wheel: Callable[..., Path]) -> None:
    with pytest.raises(ArchwrightError, match="AW103"):
        read_subject(make_wheel(tmp_path / f"other-{VERSION}-cp312-cp312-manylinux_2_34_x86_64.whl"))


@pytest.mark.parametrize("data", [b"\x7fELF", b"\x7fELF\x02\x01\x01" + bytes(60), b"\x50\xed\x55\xba\x01\x00\x10\x00"])
def test_aw420_a_binary_that_is_cut_off(data: bytes, tmp_path: Path, make_wheel: Callable[..., Path]) -> None:
    with pytest.raises(ArchwrightError, match="AW420"):
        inspect_wheel(make_wheel(tmp_path / NAME, {"tiny/lib.so": data}))


def kernel(name: str, **figures: int) -> KernelFacts:
    values = {"registers": 168, "stack": 0, "spill_stores": 0, "spill_loads": 0, "code": 512, **figures}
    return KernelFacts(
        "tiny/_C.so", name, "sm_100a", "13.2.86", local=0, shared=0, constants={}, max_threads=0, **values
    )


def with_kernels(wheel: Path, *kernels: KernelFacts) -> Inspection:
    found = inspect_wheel(wheel)
    return replace(found, subject=replace(found.subject, code=DeviceCode((), (), (), kernels)))


def test_the_html_page_escapes_every_name(wheel: Path) -> None:
    page = html_page([with_kernels(wheel, kernel("<script>alert(1)</script>"))])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "not verified here" in page


def test_html_is_written_beside_the_table(wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(wheel), "--html", str(tmp_path / "report.html")]) == 0
    assert NAME in (tmp_path / "report.html").read_text()


def test_compare_names_what_changed_kernel_by_kernel(wheel: Path) -> None:
    old = with_kernels(wheel, kernel("a"), kernel("b"), kernel("gone")).subject
    new = with_kernels(wheel, kernel("a"), kernel("b", spill_stores=20, spill_loads=28), kernel("new")).subject
    found = compare(old, new)
    assert found.added == (("new", "sm_100a"),)
    assert found.removed == (("gone", "sm_100a"),)
    (change,) = found.changed
    assert (change.name, change.fields) == ("b", {"spill_stores": (0, 20), "spill_loads": (0, 28)})


def test_compare_of_a_wheel_with_itself(wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--compare", str(wheel), str(wheel), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changed"] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"spill_stores": "many"},
        {"spill_loads": None},
        {"losses": 3, "instructions": [1]},
        {"instructions": {"mma": "x", "wgmma": 2}},
        {"registers": "168"},
    ],
)
def test_a_record_of_the_wrong_kind_counts_as_none(changes: dict[str, object]) -> None:
    entry = {**kernel("a", spill_stores=20, spill_loads=28).as_dict(), **changes}
    code = DeviceCode((), (), (), (kernel("a"),)).with_record([entry])
    (found,) = code.kernels
    assert found.spill_stores in (None, 0, 20)
    assert found.losses == ()
    assert found.instructions in (None, {"wgmma": 2})
