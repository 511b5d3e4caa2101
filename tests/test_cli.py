"""The command line: exit statuses, what is on standard output, and the words of errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from archwright import __version__, plan
from archwright.components import Component
from archwright.doctor import Finding, Level
from archwright.errors import fail

from .conftest import Run

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "available_memory", lambda: 64 << 30)
    monkeypatch.setattr(plan, "available_cores", lambda: 4)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")


def test_the_matrix_as_json_and_nothing_else(run: Run) -> None:
    status, out, err = run("targets", "--json")

    data = json.loads(out)
    assert (status, err) == (0, "")
    assert [target["name"] for target in data["targets"]] == ["sm100", "sm90", "ascend950"]
    assert len(data["cells"]) == 42
    for cell in data["cells"]:
        assert set(cell) >= {"component", "target", "processor", "state", "reason", "pending", "available", "evidence"}
        assert cell["state"] in ("build", "experimental", "refused")


def test_the_matrix_of_one_target(run: Run) -> None:
    data = json.loads(run("targets", "sm90", "--json")[1])
    assert {cell["target"] for cell in data["cells"]} == {"sm90"}
    assert len(data["cells"]) == 14


def test_the_matrix_for_people_names_every_cell_and_reason(run: Run) -> None:
    status, out, _ = run("targets")
    assert status == 0
    for word in ("sm100", "sm90", "ascend950", "experimental", "refused", "aarch64", "CUDA only", "tilelang_ops"):
        assert word in out
    assert "\x1b[" not in out, "no colour when not a terminal"


REFUSALS = [
    (("build", "sm90"), "AW106", 3),
    (("build", "ascend950", "flash_mla"), "AW334", 4),
    (("build", "sm90", "flash_mla"), "AW104", 3),
    (("build", "ascend950", "deep_ep"), "AW104", 3),
    (("build", "ascend950"), "AW334", 4),
    (("build", "rtx4090"), "AW102", 3),
    (("build", "RTX 5090"), "AW102", 3),
    (("build", "sm_120"), "AW102", 3),
    (("build", "sm_89", "--json"), "AW102", 3),
    (("doctor", "nvidia rtx pro 6000"), "AW102", 3),
    (("targets", "sm_89"), "AW102", 3),
    (("env", "create", "rtx4090"), "AW102", 3),
    (("build", "sm101"), "AW101", 2),
    (("build", "h100"), "AW101", 2),
    (("doctor", "nonsense"), "AW101", 2),
    (("build", "sm100", "flashmla"), "AW103", 2),
    (("fetch", "flashmla"), "AW103", 2),
    (("build", "sm100", "--gencode", "sm_100"), "AW107", 2),
    (("build", "sm100", "--gencode", "sm_100f"), "AW107", 2),
    (("build", "sm100", "deep_ep", "--memory", "1"), "AW309", 4),
    (("build", "sm100", "deep_ep", "--memory", "0"), "AW309", 4),
    (("build", "sm100", "deep_ep", "--nccl-root", "/nowhere"), "AW312", 4),
    (("env", "check", "sm90"), "AW307", 4),
    (("env", "create", "sm100", "--python", "3.11"), "AW302", 2),
    (("env", "create", "sm100", "--python", "3.13"), "AW302", 2),
    (("env", "create", "sm100", "--python", "/nowhere/python3.12"), "AW301", 4),
    (("fetch", "--offline", "deep_ep"), "AW207", 4),
]


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize(
    ("words", "code", "status"), REFUSALS, ids=lambda value: " ".join(value) if isinstance(value, tuple) else None
)
def test_what_cannot_be_done_has_a_code_and_a_status(words: tuple[str, ...], code: str, status: int, run: Run) -> None:
    got, out, err = run(*words)

    assert got == status
    if "--json" in words:
        assert json.loads(out)["error"]["code"] == code
    else:
        assert err.startswith(f"{code} ") or f"\n{code} " in err
        for part in ("found:", "needed:", "why:", "fix:"):
            assert part in err
        assert f"docs/errors/{code}.md" in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize(("words", "code", "status"), REFUSALS[:12])
def test_an_error_as_json_is_the_only_thing_on_standard_output(
    words: tuple[str, ...], code: str, status: int, run: Run
) -> None:
    got, out, err = run(*words, "--json")

    error = json.loads(out)["error"]
    assert got == error["exit"] == status
    assert error["code"] == code
    assert all(error[part] for part in ("title", "found", "needed", "why", "fix"))
    assert err == ""


def test_a7_the_device_of_a_gamer_is_answered_in_words(run: Run) -> None:
    _, _, err = run("build", "rtx4090")
    assert "archwright build sm100" in err
    assert "tensor memory" in err


def test_h100_suggests_sm90(run: Run) -> None:
    assert "sm90" in run("build", "h100")[2]


@pytest.mark.parametrize(
    "words",
    [
        ("frobnicate",),
        ("build",),
        ("build", "sm100", "--frobnicate"),
        ("build", "sm100", "--jobs", "0"),
        ("build", "sm100", "--jobs", "many"),
        ("build", "sm100", "--memory", "lots"),
        ("build", "sm100", "--installer", "conda"),
        ("env",),
        ("env", "create"),
        ("doctor",),
        ("targets", "sm100", "sm90"),
        (),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(words: tuple[str, ...], run: Run) -> None:
    status, out, err = run(*words)
    assert status == 2
    assert "Traceback" not in err
    assert "sage" in out + err


def test_version_and_help_are_0(run: Run) -> None:
    assert run("--version")[:2] == (0, f"archwright {__version__}\n")
    for words in (("--help",), ("build", "--help"), ("env", "create", "--help")):
        status, out, _ = run(*words)
        assert status == 0
        assert "Usage" in out


@pytest.mark.usefixtures("roomy")
def test_the_plan_is_printed_and_nothing_is_done(run: Run, cache: Path) -> None:
    status, out, _ = run("build", "sm100", "--plan", "--jobs", "2", "--memory", "20")

    assert status == 0
    assert "29 device for sm_100a, sm_103a, 23 host" in out
    assert "fmha_cutlass_bwd_sm100.cu" in out
    assert "estimate" in out
    assert list(cache.rglob("*")) == []


@pytest.mark.usefixtures("roomy")
def test_the_plan_as_json(run: Run) -> None:
    status, out, err = run("build", "sm100", "flash_mla", "--gencode", "sm_100a", "--plan", "--json")

    plan = json.loads(out)
    assert (status, err) == (0, "")
    assert plan["gencodes"] == ["sm_100a"]
    assert plan["device_files"] == 29
    assert plan["jobs"] == 4
    assert plan["memory_mib"] == int(64 * 1024 * 0.85)


def test_fetch_prints_where_the_sources_are(
    run: Run, tiny: Component, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archwright.components.components", lambda: {"tiny": tiny})

    status, out, err = run("fetch", "--json")
    (tree,) = json.loads(out)

    assert (status, err) == (0, "")
    assert tree["sha256"] == tiny.sha256
    assert Path(tree["path"]).is_relative_to(cache)

    status, out, _ = run("fetch", "tiny", "--offline")
    assert status == 0
    assert tiny.sha256[:12] in out


@pytest.mark.parametrize(("level", "status"), [(Level.OK, 0), (Level.NOTE, 0), (Level.FAIL, 4)])
def test_doctor_ends_with_4_when_the_machine_is_not_fit(
    level: Level, status: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = Finding("memory", level, "2 GiB", "10 GiB", "too little", "get more", "AW309")
    monkeypatch.setattr("archwright.doctor.examine", lambda target, python=None: (finding,))

    got, out, _ = run("doctor", "sm100")
    assert got == status
    assert "2 GiB" in out
    assert ("AW309" in out) == (level is Level.FAIL)

    got, out, _ = run("doctor", "sm100", "--json")
    data = json.loads(out)
    assert got == status
    assert data["fit"] == (status == 0)
    assert data["findings"][0]["level"] == str(level)


@pytest.mark.parametrize("words", [("-v",), ("--verbose",)])
def test_verbose_shows_where_an_error_comes_from(words: tuple[str, ...], run: Run) -> None:
    status, _, err = run("build", "sm101", *words)
    assert status == 2
    assert "Traceback" in err


def test_an_error_text_with_brackets_is_shown_as_it_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich would take [red] for a colour."""

    def broken(**anything: Any) -> None:
        raise fail(
            "AW501", found="a[red]b", needed="n", why="w", fix="pip install x[y]", detail="std::array[/bold] [1]"
        )

    monkeypatch.setattr("archwright.components.matrix", broken)
    status, _, err = run("targets")
    assert status == 5
    for text in ("a[red]b", "x[y]", "std::array[/bold] [1]"):
        assert text in err


def test_ctrl_c_is_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("archwright.components.matrix", interrupted)
    assert run("targets")[0] == 130


def test_the_installed_command_and_the_module_are_the_same_thing(root: Path) -> None:
    """Real processes: statuses reach the shell, JSON is alone on standard output."""
    good = subprocess.run([sys.executable, "-m", "archwright", "targets", "--json"], capture_output=True, text=True)
    bad = subprocess.run(
        [sys.executable, "-m", "archwright", "build", "sm_120", "--json"], capture_output=True, text=True
    )

    assert good.returncode == 0
    assert len(json.loads(good.stdout)["cells"]) == 42
    assert good.stderr == ""
    assert bad.returncode == 3
    assert json.loads(bad.stdout)["error"]["code"] == "AW102"
    assert 'archwright = "archwright.cli:run"' in (root / "pyproject.toml").read_text()


def test_usage_errors_are_json_too(run: Run) -> None:
    status, out, _ = run("build", "sm100", "--bogus", "--json")
    assert status == 2
    assert json.loads(out)["error"]["code"] == "AW109"
