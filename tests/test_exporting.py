"""Making bundles: of tiny wheels and sources, with a tiny tool built for real."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright import exporting, wheelhouse
from archwright.bundle import SUMS, Bundle, open_bundle
from archwright.components import Component
from archwright.errors import ArchwrightError
from archwright.exporting import export_bundle
from archwright.sources import fetch_archive, sha256_of

from . import bundles
from .bundles import PYPROJECT, SM100
from .tinywheel import tiny_wheel, write_lock

pytestmark = pytest.mark.usefixtures("cache")

project = bundles.project
export = bundles.export
made = bundles.made
copied = bundles.copied


def test_a_bundle_holds_sources_wheels_and_the_tool(export: Callable[..., Bundle], tiny: Component) -> None:
    bundle = export()

    names = {str(p.relative_to(bundle.folder)) for p in bundle.folder.rglob("*") if p.is_file()}
    assert names == {
        *("bundle.json", "SHA256SUMS", "README.txt", "setup", f"sources/{tiny.sha256}.tar.gz"),
        *("wheels/shared-1.0-py3-none-any.whl", "wheels/nvcc-13.2-py3-none-any.whl"),
        *("wheels/torch-2.13-py3-none-any.whl", "tool/archwright-0.1.0-py3-none-any.whl", "tool/requirements.txt"),
    }
    about = json.loads((bundle.folder / "bundle.json").read_text())
    assert about["files"]["wheels/shared-1.0-py3-none-any.whl"]["what"] == "wheel of toolchain, tool"
    assert (about["target"], about["python"], about["processor"]) == ("sm100", "3.12", os.uname().machine)
    assert set(about["files"]) == names - {"bundle.json", "SHA256SUMS"}


def test_what_is_printed_names_everything(export: Callable[..., Bundle]) -> None:
    bundle = export()
    text = "\n".join(bundle.lines())

    assert sha256_of(bundle.folder / SUMS) in text
    assert "CPython 3.12" in text
    assert "tiny" in text
    assert json.loads(json.dumps(bundle.as_dict()))["digest"] == bundle.digest


def test_sha256sum_reads_the_sums(copied: Path) -> None:
    check = ["sha256sum", "--strict", "--quiet", "-c", SUMS]
    assert subprocess.run(check, cwd=copied).returncode == 0
    (copied / "README.txt").write_text("other")
    assert subprocess.run(check, cwd=copied, capture_output=True).returncode != 0


def test_two_exports_are_the_same_bytes(export: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    first = export("one")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1500000000")
    monkeypatch.setenv("TZ", "Asia/Tokyo")

    assert export("two").digest == first.digest


def test_a_bundle_that_is_there_is_left_as_it_is(export: Callable[..., Bundle], tmp_path: Path) -> None:
    first = export()
    before = (first.folder / SUMS).stat()

    assert export() == first
    assert (first.folder / SUMS).stat() == before
    assert [p.name for p in tmp_path.glob(".*.partial")] == []


def test_the_second_export_needs_no_index(export: Callable[..., Bundle], index: Path) -> None:
    first = export()
    shutil.rmtree(index)

    assert export("again", offline=True).digest == first.digest


def test_offline_without_wheels_is_aw207(export: Callable[..., Bundle], tiny: Component) -> None:
    fetch_archive(tiny)
    with pytest.raises(ArchwrightError) as caught:
        export(offline=True)
    assert caught.value.code == "AW207"
    assert "nvcc" in caught.value.found


def test_an_empty_folder_may_be_there(export: Callable[..., Bundle], tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    assert export().folder == tmp_path / "bundle"


@pytest.mark.parametrize("what", ["file", "folder", "link", "other"])
def test_another_thing_there_is_aw109_and_untouched(
    what: str, export: Callable[..., Bundle], tmp_path: Path, project: Path, index: Path
) -> None:
    place = tmp_path / "bundle"
    if what == "file":
        place.write_text("mine")
    elif what == "link":
        place.symlink_to(tmp_path / "nowhere")
    elif what == "folder":
        place.mkdir()
        (place / "mine").touch()
    else:
        export()
        write_lock(project / "envs" / "sm100" / "runtime.lock", tiny_wheel(index, "torch", "2.14"))
    before = sorted(tmp_path.rglob("bundle*"))

    with pytest.raises(ArchwrightError) as caught:
        export()

    assert caught.value.code == "AW109"
    assert str(place) in caught.value.found
    assert sorted(tmp_path.rglob("bundle*")) == before


def test_the_same_bundle_of_another_tool_is_aw109(export: Callable[..., Bundle], project: Path, tmp_path: Path) -> None:
    bundle = export()
    (project / "python" / "archwright" / "more.py").write_text("")

    with pytest.raises(ArchwrightError) as caught:
        export()

    assert caught.value.code == "AW109"
    assert open_bundle(bundle.folder, SM100) == bundle
    assert not (tmp_path / ".bundle.partial").exists()


def test_an_installed_tool_cannot_export(export: Callable[..., Bundle], project: Path) -> None:
    (project / "pyproject.toml").unlink()
    with pytest.raises(ArchwrightError) as caught:
        export()
    assert caught.value.code == "AW109"
    assert "checkout" in caught.value.needed


def test_a_tool_that_does_not_build_leaves_nothing(
    export: Callable[..., Bundle], project: Path, tmp_path: Path
) -> None:
    (project / "pyproject.toml").write_text(PYPROJECT.replace("0.1.0", "not a version"))
    with pytest.raises(ArchwrightError) as caught:
        export()
    assert caught.value.code == "AW404"
    assert caught.value.detail
    assert list(tmp_path.glob("*bundle*")) == list(tmp_path.glob(".*bundle*")) == []


def test_c5_a_wheel_with_another_hash_is_aw201(export: Callable[..., Bundle], index: Path, tmp_path: Path) -> None:
    with (index / "torch-2.13-py3-none-any.whl").open("ab") as file:
        file.write(b"more")

    with pytest.raises(ArchwrightError) as caught:
        export()

    assert caught.value.code == "AW201"
    assert "torch" in caught.value.detail
    assert not (tmp_path / "bundle").exists()


def test_a_wheel_that_is_nowhere_is_aw206(export: Callable[..., Bundle], index: Path, tmp_path: Path) -> None:
    (index / "torch-2.13-py3-none-any.whl").unlink()

    with pytest.raises(ArchwrightError) as caught:
        export()

    assert caught.value.code == "AW206"
    assert "torch" in caught.value.detail
    assert not list((tmp_path / "cache" / "wheels").glob(".*.partial"))


def test_a_wheel_in_the_cache_that_rotted_is_fetched_again(export: Callable[..., Bundle], cache: Path) -> None:
    first = export()
    (kept,) = (cache / "wheels").glob("*/torch-*.whl")
    kept.unlink()
    kept.write_bytes(b"rotten")

    assert export("again").digest == first.digest
    assert kept.read_bytes() != b"rotten"


def test_only_wheels_for_the_oldest_c_library_and_this_processor_are_taken(
    export: Callable[..., Bundle], project: Path, index: Path
) -> None:
    """A machine with a newer C library would itself choose the first of them."""
    machine = os.uname().machine
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[machine]
    tags = [f"manylinux_2_99_{machine}", f"manylinux2014_{machine}", f"manylinux2014_{other}"]
    wheels = [tiny_wheel(index, "torch", "2.13", f"cp312-cp312-{tag}") for tag in tags]
    hashes = " ".join(f"--hash=sha256:{sha256_of(wheel)}" for wheel in wheels)
    absent = f'absent==1.0 ; platform_machine == "{other}" --hash=sha256:{"0" * 64}\n'
    (project / "envs" / "sm100" / "runtime.lock").write_text(f"torch==2.13 {hashes}\n{absent}")

    found = {path.name for path in export().wheels.iterdir()}

    assert wheels[1].name in found
    assert not {wheels[0].name, wheels[2].name} & found
    assert len(found) == 3


def test_the_platforms_end_at_the_lock_s_c_library() -> None:
    names = list(wheelhouse._platforms("x86_64"))
    assert names[0] == "manylinux_2_28_x86_64"
    assert {"manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux1_x86_64", "linux_x86_64"} < set(names)
    assert next(wheelhouse._platforms("aarch64")) == "manylinux_2_34_aarch64"


def test_c5_a_disk_that_is_full_says_so_first(export: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archwright.project.free_bytes", lambda path: 1 << 30)
    with pytest.raises(ArchwrightError) as caught:
        export()
    assert caught.value.code == "AW308"


def _export_to_a_small_disk(disk: Path, component: Component, codes: multiprocessing.Queue[str]) -> None:
    user, group = os.getuid(), os.getgid()
    os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], check=True)
    try:
        export_bundle(SM100, [component], disk / "bundle")
    except ArchwrightError as error:
        codes.put(f"{error.code} {[p.name for p in disk.iterdir()]}")


@pytest.mark.parametrize("large", ["wheel", "tool"])
def test_c5_a_disk_that_fills_up_is_aw308_and_leaves_nothing(
    large: str, private_mounts: list[str], project: Path, tiny: Component, tmp_path: Path, index: Path
) -> None:
    """A real small disk, which nobody else sees."""
    if large == "wheel":
        wheel = tiny_wheel(index, "torch", "2.13", data=os.urandom(100_000))
        write_lock(project / "envs" / "sm100" / "runtime.lock", wheel)
    else:
        (project / "python" / "archwright" / "data.bin").write_bytes(os.urandom(100_000))
    (tmp_path / "disk").mkdir()
    context = multiprocessing.get_context("fork")
    codes: multiprocessing.Queue[str] = context.Queue()
    child = context.Process(target=_export_to_a_small_disk, args=(tmp_path / "disk", tiny, codes))
    child.start()
    child.join(60)

    assert codes.get(timeout=1) == "AW308 []"


def _export_in_a_child(destination: Path, component: Component, digests: multiprocessing.Queue[str]) -> None:
    digests.put(export_bundle(SM100, [component], destination).digest)


def test_d3_two_exports_at_once_make_one_bundle(project: Path, tiny: Component, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    digests: multiprocessing.Queue[str] = context.Queue()
    children = [context.Process(target=_export_in_a_child, args=(tmp_path / "bundle", tiny, digests)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)

    assert [child.exitcode for child in children] == [0, 0]
    assert digests.get() == digests.get() == open_bundle(tmp_path / "bundle", SM100).digest


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_d2_an_export_that_is_stopped_leaves_no_bundle_and_a_rerun_works(
    kill: signal.Signals, project: Path, tiny: Component, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = tmp_path / "reached"

    def stop_here(*words: object) -> Path:
        reached.touch()
        time.sleep(60)
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(exporting, "_build_tool", stop_here)
        context = multiprocessing.get_context("fork")
        child = context.Process(target=_export_in_a_child, args=(tmp_path / "bundle", tiny, context.Queue()))
        child.start()
        while not reached.exists():
            time.sleep(0.01)
        os.kill(child.pid or 0, kill)
        child.join(30)

    assert child.exitcode != 0
    assert not (tmp_path / "bundle").exists()
    assert (tmp_path / ".bundle.partial").exists() == (kill is signal.SIGKILL)
    assert export_bundle(SM100, [tiny], tmp_path / "bundle").folder.is_dir()
    assert not (tmp_path / ".bundle.partial").exists()
