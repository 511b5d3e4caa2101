"""`archwright env` from end to end, on an environment of tiny wheels: the real uv, the real files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from archwright import environment, freeze, locking, project
from archwright.compiler import HostCompiler

from .conftest import Run
from .tinywheel import tiny_wheel, write_lock


@pytest.fixture
def locks(tmp_path: Path, cache: Path, index: Path, pip_answers_at_once: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with locks of ascend950 (which needs no nvcc) for tiny wheels in `index`, and a known compiler."""
    root = tmp_path / "checkout"
    folder = root / "envs" / "ascend950"
    folder.mkdir(parents=True)
    (root / "pyproject.toml").touch()
    for half, names in (("toolchain", ("cmake", "ninja")), ("runtime", ("torch", "orjson"))):
        wheels = [tiny_wheel(index, name, "2.13.0") for name in names]
        write_lock(folder / f"{half}.lock", *wheels, via=f"-r ascend950/{half}.in")
        (folder / f"{half}.in").write_text("".join(f"{name}==2.13.0  # pinned for the test\n" for name in names))
    for module in (environment, freeze, locking, project):
        monkeypatch.setattr(module, "project_root", lambda: root)
    gxx = tmp_path / "g++"
    gxx.write_text("#!/bin/sh\n")
    compiler = HostCompiler(gxx, gxx, "14.2.0", "PATH", True, {})
    monkeypatch.setattr(environment, "choose_compiler", lambda offline=False: compiler)
    monkeypatch.setattr(environment, "_SPACE", 1 << 20)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(index))
    monkeypatch.setenv("UV_LINK_MODE", "hardlink")
    return folder


@pytest.fixture
def made(locks: Path, run: Run) -> Path:
    """The folder of a complete environment."""
    status, out, err = run("env", "create", "ascend950", "--python", sys.executable, "--json")
    assert status == 0, err
    return Path(json.loads(out)["path"])


def check(run: Run, *words: str) -> tuple[int, str, str]:
    return run("env", "check", "ascend950", "--python", sys.executable, *words)


def module_of(made: Path, name: str = "torch") -> Path:
    return made / "runtime" / "lib" / "python3.12" / "site-packages" / f"{name}.py"


def test_an_environment_is_created_once_and_is_as_locked(made: Path, run: Run) -> None:
    before = (made / "env.json").stat().st_mtime_ns

    status, out, err = check(run)

    assert status == 0, err
    assert "every package and every file is as locked" in out
    assert "loaded together: torch, orjson" in out
    assert run("env", "create", "ascend950", "--python", sys.executable)[0] == 0
    assert (made / "env.json").stat().st_mtime_ns == before


def test_a_changed_file_is_named_and_creating_again_repairs_it_though_uv_has_it_too(made: Path, run: Run) -> None:
    with module_of(made).open("a") as file:  # a hard link: uv's own copy changes with it
        file.write("edited = True\n")

    status, _, err = check(run)
    assert status == 1
    assert "AW314" in err
    assert "torch.py" in err
    assert "archwright env create ascend950 --again" in err

    as_json = json.loads(check(run, "--json")[1])
    (drift,) = as_json["drifts"]
    assert (as_json["clean"], drift["package"], drift["kind"]) == (False, "torch", "modified file")

    assert run("env", "create", "ascend950", "--python", sys.executable, "--again")[0] == 0
    assert "edited" not in module_of(made).read_text()
    assert check(run)[0] == 0


def test_what_uv_gives_damaged_is_noticed_while_it_is_created(made: Path, run: Run) -> None:
    with module_of(made).open("a") as file:
        file.write("edited = True\n")
    (made / "env.json").unlink()  # half-made: `create` starts again, and uv would link the edited file

    status, _, err = run("env", "create", "ascend950", "--python", sys.executable)

    assert status == 0
    assert "torch: damaged in the installer's cache; installing again" in err
    assert "edited" not in module_of(made).read_text()


def test_imports_can_be_left_out(made: Path, run: Run) -> None:
    module_of(made, "orjson").touch()

    status, out, _ = check(run, "--no-imports")

    assert status == 0
    assert "loaded together" not in out


def test_freezing_writes_one_file_and_checks_it(made: Path, locks: Path, run: Run) -> None:
    words = ("env", "freeze", "ascend950", "--python", sys.executable)

    status, out, err = run(*words, "--model", "deepseek-v4@1")

    assert status == 0, err
    path = locks.parents[1] / "dist" / "ascend950" / "freeze.json"
    record = json.loads(path.read_text())
    assert record["digest"] in out
    assert record["model"] == "deepseek-v4@1"
    assert record["cann"] is None
    assert "none found" in out
    assert run(*words, "--check")[0] == 0

    path.write_text(path.read_text().replace("deepseek-v4@1", "deepseek-v4@2"))
    status, _, err = run(*words, "--check")
    assert (status, "AW319" in err) == (1, True)


def test_locks_are_made_compared_and_checked(locks: Path, run: Run, tmp_path: Path, index: Path) -> None:
    old = tmp_path / "old.lock"
    assert run("env", "lock", "ascend950")[0] == 0
    old.write_text((locks / "runtime.lock").read_text())
    assert "# reason: pinned for the test" in old.read_text()
    assert run("env", "lock", "ascend950", "--check")[0] == 0
    assert run("env", "diff", str(old), str(locks / "runtime.lock"))[0] == 0

    tiny_wheel(index, "torch", "2.14.0")
    (locks / "runtime.in").write_text("torch==2.14.0\norjson==2.13.0\n")
    status, _, err = run("env", "lock", "ascend950", "--check")
    assert (status, "AW322" in err) == (1, True), err

    status, out, _ = run("env", "lock", "ascend950", "--json")
    assert status == 0
    assert [(each["lock"], each["changed"]) for each in json.loads(out)] == [
        ("ascend950/toolchain", False),
        ("ascend950/runtime", True),
    ]
    status, out, _ = run("env", "diff", str(old), str(locks / "runtime.lock"))
    assert status == 1
    assert "torch" in out
    assert "2.13.0" in out
    assert "2.14.0" in out


def test_another_lock_is_another_environment_and_there_is_none_yet(made: Path, locks: Path, run: Run) -> None:
    (locks / "toolchain.lock").write_text((locks / "toolchain.lock").read_text().partition("ninja")[0])

    status, _, err = check(run)

    assert status == 4
    assert "AW307" in err
    assert "archwright env create ascend950" in err


def test_a_read_only_cache_is_aw327(locks: Path, cache: Path, private_mounts: list[str]) -> None:
    """In a mount namespace: root writes everywhere else."""
    cache.mkdir()
    words = [sys.executable, "-m", "archwright", "env", "create", "sm100"]
    script = f'mount --bind "{cache}" "{cache}" && mount -o remount,bind,ro "{cache}" && exec "$@"'

    run = subprocess.run([*private_mounts, "sh", "-c", script, "sh", *words], capture_output=True, text=True)

    assert run.returncode == 4
    assert "AW327" in run.stderr
    assert "Traceback" not in run.stderr
