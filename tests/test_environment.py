"""Environments: validation, records and making one; the real one is made by the end-to-end test."""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from archwright import environment as module
from archwright.compiler import HostCompiler
from archwright.environment import (
    Environment,
    create_environment,
    environment_of_prefix,
    find_environment,
    require_environment,
    use_nccl_root,
)
from archwright.errors import ArchwrightError, Exit
from archwright.interpreter import Interpreter, find_python
from archwright.targets import target_table

TARGETS = target_table().targets

NCCL_H = """\
#ifndef NCCL_H_
#define NCCL_MAJOR 2
#define NCCL_MINOR 33
#define NCCL_PATCH 1
#define NCCL_SUFFIX ""
#define NCCL_VERSION_CODE 23301
"""


@pytest.fixture
def nccl(tmp_path: Path) -> Path:
    root = tmp_path / "opt" / "nccl"
    (root / "include").mkdir(parents=True)
    (root / "lib").mkdir()
    (root / "include" / "nccl.h").write_text(NCCL_H)
    (root / "lib" / "libnccl.so.2").touch()
    return root


def test_b4_a_root_that_is_named_is_used_and_its_version_read(environment: Environment, nccl: Path) -> None:
    used = use_nccl_root(environment, nccl)

    assert used.nccl_root == nccl
    assert used.nccl == "2.33.1"
    assert replace(used, nccl=environment.nccl, nccl_root=environment.nccl_root) == environment


@pytest.mark.parametrize("missing", ["include/nccl.h", "lib/libnccl.so.2"])
def test_b4_a_wrong_root_is_aw312_and_nothing_is_searched(missing: str, environment: Environment, nccl: Path) -> None:
    (nccl / missing).unlink()

    with pytest.raises(ArchwrightError) as caught:
        use_nccl_root(environment, nccl)

    assert caught.value.code == "AW312"
    assert caught.value.exit is Exit.UNFIT
    assert missing in caught.value.found
    assert str(nccl) in caught.value.found


def test_b4_a_folder_that_is_not_there_is_aw312(environment: Environment, tmp_path: Path) -> None:
    with pytest.raises(ArchwrightError) as caught:
        use_nccl_root(environment, tmp_path / "nowhere")
    assert caught.value.code == "AW312"


def test_b4_a_header_without_a_version_is_aw312(environment: Environment, nccl: Path) -> None:
    (nccl / "include" / "nccl.h").write_text("#define NCCL_MAJOR 2\n")
    with pytest.raises(ArchwrightError) as caught:
        use_nccl_root(environment, nccl)
    assert caught.value.code == "AW312"
    assert "NCCL_MINOR" in caught.value.found


def test_b4_no_root_is_the_locked_one(environment: Environment) -> None:
    assert use_nccl_root(environment, None) is environment


def test_a_relative_root_is_made_absolute(
    environment: Environment, nccl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(nccl.parent)
    assert use_nccl_root(environment, Path("nccl")).nccl_root == nccl


def test_the_record_of_an_environment_survives_json(environment: Environment, tmp_path: Path) -> None:
    record = tmp_path / "env.json"
    record.write_text(json.dumps(environment.as_dict()))
    assert Environment.load(record) == environment


def test_names_that_follow_from_it(environment: Environment) -> None:
    assert environment.toolkit_release == "cu132"
    assert environment.runtime_site == environment.runtime / "lib" / "python3.12" / "site-packages"


def test_a_prefix_that_is_no_environment_of_ours_is_aw307(tmp_path: Path) -> None:
    with pytest.raises(ArchwrightError) as caught:
        environment_of_prefix(tmp_path / "venv")
    assert caught.value.code == "AW307"
    assert "archwright env create" in caught.value.fix


def test_a_toolchain_prefix_finds_its_environment(environment: Environment) -> None:
    (environment.path / "env.json").write_text(json.dumps(environment.as_dict()))
    assert environment_of_prefix(environment.toolchain) == environment


@pytest.mark.usefixtures("cache")
def test_a_target_without_locks_is_aw307(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "project_root", lambda: tmp_path)
    with pytest.raises(ArchwrightError) as caught:
        create_environment(TARGETS["sm90"])
    assert caught.value.code == "AW307"
    assert "envs/sm90" in caught.value.found
    assert "archwright env lock sm90" in caught.value.fix


def test_no_environment_where_one_is_needed_is_aw307(tools: object, cache: Path) -> None:
    with pytest.raises(ArchwrightError) as caught:
        require_environment(TARGETS["sm100"])
    assert caught.value.code == "AW307"
    assert caught.value.fix == "archwright env create sm100"


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch, cache: Path) -> tuple[Interpreter, HostCompiler]:
    """A known interpreter and compiler instead of this machine's."""
    interpreter = find_python(sys.executable)
    compiler = HostCompiler(Path("/usr/bin/g++"), Path("/usr/bin/gcc"), "14.2.0", "PATH", True, {})
    monkeypatch.setattr(module, "find_python", lambda named=None: interpreter)
    monkeypatch.setattr(module, "choose_compiler", lambda offline=False: compiler)
    return interpreter, compiler


def test_an_empty_cache_has_no_environment(tools: object, cache: Path) -> None:
    assert find_environment(TARGETS["sm100"]) is None
    assert not (cache / "envs").exists(), "looking changes nothing"


def test_an_environment_is_found_only_when_it_is_complete(
    tools: tuple[Interpreter, HostCompiler], environment: Environment
) -> None:
    path, _ = module._location(TARGETS["sm100"], module._Machine(*tools))
    path.mkdir(parents=True)
    assert find_environment(TARGETS["sm100"]) is None

    (path / "env.json").write_text("{}")
    assert find_environment(TARGETS["sm100"]) is None

    (path / "env.json").write_text(json.dumps(environment.as_dict()))
    assert find_environment(TARGETS["sm100"]) == environment


def test_another_python_compiler_or_lock_is_another_environment(
    tools: tuple[Interpreter, HostCompiler], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    interpreter, compiler = tools
    sm100 = TARGETS["sm100"]

    def where(i: Interpreter = interpreter, c: HostCompiler = compiler) -> Path:
        return module._location(sm100, module._Machine(i, c))[0]

    usual = where()
    assert where() == usual
    assert where(i=replace(interpreter, version="3.12.99")) != usual
    assert where(c=replace(compiler, version="15.1.0")) != usual
    assert where(c=replace(compiler, packages={"g++.deb": "0" * 64})) != usual
    lock = tmp_path / "toolchain.lock"
    lock.write_text(f"cmake==1 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setattr(module, "_locks", lambda target: {"toolchain": lock})
    other = where()
    assert other != usual
    lock.write_text(f"# a comment\ncmake==1 --hash=sha256:{'0' * 64}\n    # via somebody\n")
    assert where() == other, "what is locked counts, not the words about it"


def test_c5_too_little_room_is_said_first(tools: object, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr("archwright.project.free_bytes", lambda path: 1 << 30)

    with pytest.raises(ArchwrightError) as caught:
        create_environment(TARGETS["sm100"])

    assert caught.value.code == "AW308"
    assert not list((cache / "envs").glob("sm100-*"))


def test_the_locks_are_for_this_tools_python(root: Path) -> None:
    assert find_python(sys.executable).version.startswith(target_table().python + ".")
    assert platform.python_implementation() == "CPython"
    assert set(module._locks(TARGETS["sm100"])) == {"toolchain", "runtime"}
