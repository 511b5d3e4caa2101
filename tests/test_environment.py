"""Environments: validation, records and locked installs; the real one is made by the end-to-end test."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from archwright import environment as module
from archwright.compiler import HostCompiler
from archwright.environment import (
    Environment,
    Installer,
    create_environment,
    environment_of_prefix,
    find_environment,
    use_nccl_root,
)
from archwright.errors import ArchwrightError, Exit
from archwright.interpreter import Interpreter, find_python
from archwright.sources import sha256_of
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
@pytest.mark.parametrize("target", ["sm90", "ascend950"])
def test_a_target_without_locks_is_aw307(target: str) -> None:
    with pytest.raises(ArchwrightError) as caught:
        create_environment(TARGETS[target])
    assert caught.value.code == "AW307"
    assert target in caught.value.found


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
    path, _ = module._location(TARGETS["sm100"], *tools)
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
        return module._location(sm100, i, c)[0]

    usual = where()
    assert where() == usual
    assert where(i=replace(interpreter, version="3.12.99")) != usual
    assert where(c=replace(compiler, version="15.1.0")) != usual
    assert where(c=replace(compiler, packages={"g++.deb": "0" * 64})) != usual
    lock = tmp_path / "toolchain.lock"
    lock.write_text("cmake==1\n")
    monkeypatch.setattr(module, "_locks", lambda target: {"toolchain": lock})
    assert where() != usual


def test_c5_too_little_room_is_said_first(tools: object, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr("archwright.project.free_bytes", lambda path: 1 << 30)

    with pytest.raises(ArchwrightError) as caught:
        create_environment(TARGETS["sm100"])

    assert caught.value.code == "AW308"
    assert not list((cache / "envs").glob("sm100-*"))


def make_wheel(folder: Path, name: str = "tiny", version: str = "1.0") -> Path:
    """A wheel with one module, made by hand."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": b"value = 1\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(data)}\n")
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", "".join([*rows, f"{info}/RECORD,,\n"]))
    return path


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Path:
    """A folder that pip's settings name as the only place; uv is to look nowhere else either."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "pip"))
    return folder


@pytest.mark.parametrize("installer", list(Installer))
def test_both_installers_install_what_the_lock_says(installer: Installer, links: Path, tmp_path: Path) -> None:
    lock = tmp_path / "half.lock"
    lock.write_text(f"tiny==1.0 --hash=sha256:{sha256_of(make_wheel(links))}\n")

    module._install(tmp_path / "half", lock, find_python(sys.executable), installer, offline=False)

    assert (module._site_packages(tmp_path / "half") / "tiny.py").is_file()


@pytest.mark.parametrize(
    "line",
    ["tiny==1.0 --hash=sha256:" + "0" * 64, "tiny==1.0", "gone==1.0 --hash=sha256:" + "0" * 64],
    ids=["another hash", "no hash", "not there"],
)
def test_aw306_what_differs_from_the_lock_is_not_installed(line: str, links: Path, tmp_path: Path) -> None:
    make_wheel(links)
    lock = tmp_path / "half.lock"
    lock.write_text(f"{line}\n")

    with pytest.raises(ArchwrightError) as caught:
        module._install(tmp_path / "half", lock, find_python(sys.executable), Installer.UV, offline=False)

    assert caught.value.code == "AW306"
    assert caught.value.exit is Exit.UNFIT
    assert str(lock) in caught.value.found
    assert "--installer pip" in caught.value.fix
    assert caught.value.detail.strip(), "the installer's own words"


def test_c5_an_installer_that_runs_out_of_space_is_aw308(
    links: Path, tmp_path: Path, script: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    full = script("uv", "echo 'error: failed to copy: No space left on device (os error 28)' >&2; exit 2")
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(full))
    lock = tmp_path / "half.lock"
    lock.write_text("")

    with pytest.raises(ArchwrightError) as caught:
        module._install(tmp_path / "half", lock, find_python(sys.executable), Installer.UV, offline=False)

    assert caught.value.code == "AW308"
    assert "half.lock" in caught.value.needed


def test_c2_offline_uv_is_told_so(
    links: Path, tmp_path: Path, script: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(script("uv", f'echo "$@" >>{log}')))
    lock = tmp_path / "half.lock"
    lock.write_text("")

    module._install(tmp_path / "half", lock, find_python(sys.executable), Installer.UV, offline=True)

    assert all("--offline" in line for line in log.read_text().splitlines())
    assert "--require-hashes" in log.read_text().splitlines()[1]


def test_the_locks_are_for_this_tools_python(root: Path) -> None:
    assert find_python(sys.executable).version.startswith(target_table().python + ".")
    assert platform.python_implementation() == "CPython"
    assert set(module._locks(TARGETS["sm100"])) == {"toolchain", "runtime"}
