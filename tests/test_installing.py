"""Locked installs with the real uv and pip, from folders of tiny wheels."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright.errors import ArchwrightError, Exit
from archwright.indexes import Installer
from archwright.installing import PackageSource, forget_cached, install_lock
from archwright.interpreter import find_python
from archwright.sources import sha256_of

from .tinywheel import tiny_wheel


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
    lock.write_text(f"tiny==1.0 --hash=sha256:{sha256_of(tiny_wheel(links, 'tiny'))}\n")

    install_lock(tmp_path / "half", lock, find_python(sys.executable), PackageSource(installer))

    assert (tmp_path / "half" / "lib" / "python3.12" / "site-packages" / "tiny.py").is_file()


@pytest.mark.parametrize(
    "line",
    ["tiny==1.0 --hash=sha256:" + "0" * 64, "tiny==1.0", "gone==1.0 --hash=sha256:" + "0" * 64],
    ids=["another hash", "no hash", "not there"],
)
def test_aw306_what_differs_from_the_lock_is_not_installed(line: str, links: Path, tmp_path: Path) -> None:
    tiny_wheel(links, "tiny")
    lock = tmp_path / "half.lock"
    lock.write_text(f"{line}\n")

    with pytest.raises(ArchwrightError) as caught:
        install_lock(tmp_path / "half", lock, find_python(sys.executable), PackageSource())

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
        install_lock(tmp_path / "half", lock, find_python(sys.executable), PackageSource())

    assert caught.value.code == "AW308"
    assert "half.lock" in caught.value.needed


def test_c2_offline_uv_is_told_so(
    links: Path, tmp_path: Path, script: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(script("uv", f'echo "$@" >>{log}')))
    lock = tmp_path / "half.lock"
    lock.write_text("")

    install_lock(tmp_path / "half", lock, find_python(sys.executable), PackageSource(offline=True))

    assert all("--offline" in line for line in log.read_text().splitlines())
    assert "--require-hashes" in log.read_text().splitlines()[1]


@pytest.mark.parametrize("installer", list(Installer))
def test_c2_a_folder_of_wheels_is_enough_without_any_network(
    installer: Installer, cache: Path, tmp_path: Path, no_network: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    lock = tmp_path / "half.lock"
    lock.write_text(f"tiny==1.0 --hash=sha256:{sha256_of(tiny_wheel(folder, 'tiny'))}\n")
    code = (
        "import sys; from pathlib import Path; from archwright.installing import *; from archwright.indexes import *;"
        "from archwright.interpreter import find_python;"
        "install_lock(Path(sys.argv[1]), Path(sys.argv[2]), find_python(sys.executable),"
        " PackageSource(Installer(sys.argv[3]), wheels=Path(sys.argv[4])))"
    )

    words = [*no_network, sys.executable, "-c", code, tmp_path / "half", lock, installer, folder]
    subprocess.run([str(word) for word in words], check=True)

    assert (tmp_path / "half" / "lib" / "python3.12" / "site-packages" / "tiny.py").is_file()


def test_what_uv_unpacked_and_somebody_edited_comes_back_until_it_is_forgotten(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv hard-links from its cache: why `create` verifies every file, and has uv forget what is damaged."""
    lock = tmp_path / "half.lock"
    lock.write_text(f"tiny==1.0 --hash=sha256:{sha256_of(tiny_wheel(links, 'tiny'))}\n")
    monkeypatch.setenv("UV_LINK_MODE", "hardlink")

    def install(name: str) -> Path:
        install_lock(tmp_path / name, lock, find_python(sys.executable), PackageSource())
        return tmp_path / name / "lib" / "python3.12" / "site-packages" / "tiny.py"

    with install("first").open("a") as file:
        file.write("edited = True\n")
    assert "edited" in install("second").read_text()

    forget_cached(("tiny",))

    assert "edited" not in install("third").read_text()


def test_an_environment_does_not_consist_of_links_into_uvs_cache(
    links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "half.lock"
    lock.write_text(f"tiny==1.0 --hash=sha256:{sha256_of(tiny_wheel(links, 'tiny'))}\n")
    monkeypatch.setenv("UV_LINK_MODE", "symlink")

    install_lock(tmp_path / "half", lock, find_python(sys.executable), PackageSource())

    assert not (tmp_path / "half" / "lib" / "python3.12" / "site-packages" / "tiny.py").is_symlink()
