"""Using bundles: good ones, and ones broken in every way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from archwright.bundle import SUMS, open_bundle, read_bundle
from archwright.components import Component
from archwright.errors import ArchwrightError, Exit
from archwright.indexes import Installer
from archwright.installing import PackageSource, install_lock
from archwright.interpreter import find_python
from archwright.sources import fetch_archive, sha256_of
from archwright.targets import target_table

from . import bundles
from .bundles import SM100
from .tinywheel import tiny_wheel, write_lock

pytestmark = pytest.mark.usefixtures("cache")

project = bundles.project
made = bundles.made
copied = bundles.copied


def problem_of(folder: Path) -> str:
    with pytest.raises(ArchwrightError) as caught:
        open_bundle(folder, SM100)
    assert caught.value.code == "AW321"
    assert caught.value.exit is Exit.CHECK_FAILED
    assert str(folder) in caught.value.found
    return f"{caught.value.found}\n{caught.value.detail}"


def reseal(folder: Path) -> None:
    """Write SHA256SUMS and the sizes anew, as somebody would who wants a change to go unnoticed."""
    about = json.loads((folder / "bundle.json").read_text())
    for name in about["files"]:
        about["files"][name]["size"] = (folder / name).stat().st_size if (folder / name).exists() else 0
    (folder / "bundle.json").write_text(json.dumps(about))
    names = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.name != SUMS)
    (folder / SUMS).write_text("".join(f"{sha256_of(folder / name)}  {name}\n" for name in names))


def test_a_good_bundle_opens(copied: Path, tiny: Component) -> None:
    bundle = open_bundle(copied, SM100, names=["tiny"])

    assert bundle.folder == copied
    assert bundle.components == {"tiny": tiny.sha256}
    assert bundle.wheels == copied / "wheels"
    assert bundle == read_bundle(copied)
    assert open_bundle(copied) == bundle, "without naming a target"


def test_files_are_hashed_once_and_again_when_one_changed(copied: Path) -> None:
    said: list[str] = []
    open_bundle(copied, SM100, report=said.append)
    assert len(said) == 1
    assert "verifying" in said[0]

    open_bundle(copied, SM100, report=said.append)
    assert len(said) == 1

    wheel = copied / "wheels" / "torch-2.13-py3-none-any.whl"
    data, times = wheel.read_bytes(), wheel.stat()
    wheel.write_bytes(data[:-1] + b"!")
    os.utime(wheel, ns=(times.st_atime_ns, times.st_mtime_ns))  # the same size and time
    assert f"wheels/{wheel.name}: sha256" in problem_of(copied)


def test_a_copy_is_verified_anew(copied: Path, tmp_path: Path) -> None:
    """`cp -a` keeps times and sizes, and a bad disk changes bytes."""
    open_bundle(copied, SM100)
    second = tmp_path / "second"
    subprocess.run(["cp", "-a", copied, second], check=True)
    said: list[str] = []
    open_bundle(second, SM100, report=said.append)
    assert len(said) == 1


def damage(folder: Path, what: str) -> str:
    """Damage the bundle; returns what the error must name."""
    wheel = folder / "wheels" / "torch-2.13-py3-none-any.whl"
    other = folder / "wheels" / "nvcc-13.2-py3-none-any.whl"
    if what == "truncated":
        os.truncate(wheel, 10)
        return f"wheels/{wheel.name}: 10 bytes instead of "
    if what == "missing":
        wheel.unlink()
        return f"wheels/{wheel.name}: missing"
    if what == "extra":
        shutil.copy(wheel, folder / "wheels" / "evil-1.0-py3-none-any.whl")
        return "wheels/evil-1.0-py3-none-any.whl: not part of the bundle"
    if what == "hidden":
        (folder / ".cache").write_text("x")
        return ".cache: not part of the bundle"
    if what == "swapped":
        wheel.rename(folder / "x")
        other.rename(wheel)
        (folder / "x").rename(other)
        return "wheels/nvcc-13.2-py3-none-any.whl: "
    if what == "changed":
        data = wheel.read_bytes()
        wheel.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
        return f"wheels/{wheel.name}: sha256 {sha256_of(wheel)}"
    if what == "link":
        wheel.rename(folder.parent / wheel.name)
        wheel.symlink_to(folder.parent / wheel.name)
        return f"wheels/{wheel.name}: a link to "
    if what == "linked folder":
        (folder / "wheels").rename(folder.parent / "wheels")
        (folder / "wheels").symlink_to(folder.parent / "wheels")
        return "wheels: a link to "
    if what == "fifo":
        wheel.unlink()
        os.mkfifo(wheel)
        return f"wheels/{wheel.name}: neither a file nor a folder"
    if what == "sums":
        (folder / SUMS).write_text("not a sum\n")
        return "'not a sum' is no line of it"
    if what == "no sums":
        (folder / SUMS).unlink()
        return SUMS
    if what == "linked sums":
        (folder / SUMS).rename(folder.parent / SUMS)
        (folder / SUMS).symlink_to(folder.parent / SUMS)
        return f"{SUMS} is a link"
    if what == "outside":
        with (folder / SUMS).open("a") as file:
            file.write(f"{'0' * 64}  ../../etc/passwd\n")
        return "../../etc/passwd: missing"
    if what == "setup":
        (folder / "setup").write_text("#!/bin/sh\necho evil\n")
        return "setup: "
    if what == "about":
        (folder / "bundle.json").write_text("[1]")
        return "bundle.json"
    raise AssertionError(what)


@pytest.mark.parametrize(
    "what",
    [
        *("truncated", "missing", "extra", "hidden", "swapped", "changed", "link", "linked folder", "fifo"),
        *("sums", "no sums", "linked sums", "outside", "setup", "about"),
    ],
)
def test_c5_what_is_damaged_is_named(what: str, copied: Path) -> None:
    open_bundle(copied, SM100)  # it was good, and the cache remembers that
    wanted = damage(copied, what)
    assert wanted in problem_of(copied)


def test_many_problems_are_listed(copied: Path) -> None:
    for path in [*(copied / "wheels").iterdir(), copied / "setup"]:
        path.unlink()
    with pytest.raises(ArchwrightError) as caught:
        open_bundle(copied, SM100)
    assert "and 1 more" in caught.value.found
    assert len(caught.value.detail.splitlines()) == 4


@pytest.mark.parametrize("what", ["wheel", "source"])
def test_f4_a_tampered_file_with_new_sums_is_not_as_locked(what: str, copied: Path, tiny: Component) -> None:
    path = {"wheel": "wheels/torch-2.13-py3-none-any.whl", "source": f"sources/{tiny.sha256}.tar.gz"}[what]
    (copied / path).write_bytes(b"evil")
    reseal(copied)
    subprocess.run(["sha256sum", "--quiet", "-c", SUMS], cwd=copied, check=True)

    found = problem_of(copied)

    assert {"wheel": "torch 2.13 with a sha256 of runtime.lock", "source": path}[what] in found


def test_a_folder_that_is_not_there_is_aw321(tmp_path: Path) -> None:
    assert "bundle.json" in problem_of(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("target", "sm90", "target sm90"),
        ("target", "rtx", "target rtx"),
        ("processor", "riscv64", "processor riscv64"),
        ("python", "3.13", "Python 3.13"),
        ("glibc", "99.1", "glibc"),
        ("components", {"tiny": "0" * 64}, "tiny from 000000000000"),
        ("components", {"other": "0" * 64}, "other from"),
        ("schema", 2, "schema"),
        ("files", {"x": {"size": -1, "what": ""}}, "minimum"),
        ("compiler", {"compiler": {"../x.deb": "0" * 64}}, "../x.deb"),
        ("compiler", {"compiler": {"x.deb": "../../x"}}, "../../x"),
    ],
)
def test_one_for_something_else_is_aw321(key: str, value: object, said: str, copied: Path) -> None:
    about = json.loads((copied / "bundle.json").read_text())
    (copied / "bundle.json").write_text(json.dumps(about | {key: value}))
    reseal_sums = {line[66:]: line for line in (copied / SUMS).read_text().splitlines()}
    reseal_sums["bundle.json"] = f"{sha256_of(copied / 'bundle.json')}  bundle.json"
    (copied / SUMS).write_text("\n".join(reseal_sums.values()) + "\n")

    assert said in problem_of(copied)


def test_one_without_the_target_asked_for_is_aw321(copied: Path) -> None:
    with pytest.raises(ArchwrightError) as caught:
        open_bundle(copied, target_table().targets["sm90"])
    assert caught.value.code == "AW321"
    assert "target sm100" in caught.value.found
    assert "target sm90" in caught.value.needed


def test_one_without_a_component_is_aw321(copied: Path) -> None:
    with pytest.raises(ArchwrightError) as caught:
        open_bundle(copied, SM100, names=["tiny", "flash_mla"])
    assert "no flash_mla" in caught.value.found


@pytest.mark.parametrize("half", ["toolchain", "runtime"])
def test_another_lock_is_aw321_and_other_comments_are_not(half: str, copied: Path, project: Path, index: Path) -> None:
    lock = project / "envs" / "sm100" / f"{half}.lock"
    lock.write_text(lock.read_text() + "# another comment\n")
    assert open_bundle(copied, SM100)

    write_lock(lock, tiny_wheel(index, "torch", "2.14"))
    assert f"{half}.lock" in problem_of(copied)


def test_another_lock_of_the_tool_does_not_matter(copied: Path, project: Path, index: Path) -> None:
    write_lock(project / "envs" / "tool.lock", tiny_wheel(index, "shared", "2.0"))
    assert open_bundle(copied, SM100)


def test_nothing_is_written_into_it(copied: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (copied, *copied.rglob("*"))}

    open_bundle(copied, SM100).seed_cache()

    assert {path: path.stat().st_mtime_ns for path in (copied, *copied.rglob("*"))} == before


def test_the_cache_is_seeded_with_sources(copied: Path, tiny: Component, index: Path, cache: Path) -> None:
    archive = cache / "archives" / f"{tiny.sha256}.tar.gz"
    archive.unlink(missing_ok=True)
    shutil.rmtree(index)

    open_bundle(copied, SM100).seed_cache()

    assert fetch_archive(tiny, offline=True) == archive
    assert not archive.samefile(copied / "sources" / archive.name), "the cache outlives the bundle"


def test_a_rotten_archive_in_the_cache_is_replaced(copied: Path, tiny: Component, cache: Path) -> None:
    archive = cache / "archives" / f"{tiny.sha256}.tar.gz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)
    archive.write_bytes(b"rotten")

    open_bundle(copied, SM100).seed_cache()

    assert sha256_of(archive) == tiny.sha256


@pytest.mark.parametrize("installer", list(Installer))
def test_both_installers_need_nothing_but_the_bundle(
    installer: Installer, copied: Path, project: Path, tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    wheels = open_bundle(copied, SM100).wheels
    shutil.rmtree(index)
    lock = project / "envs" / "sm100" / "toolchain.lock"
    source = PackageSource(installer, offline=True, wheels=wheels)

    install_lock(tmp_path / "half", lock, find_python(sys.executable), source)

    assert list((tmp_path / "half").rglob("site-packages/nvcc.py"))
