"""Locks made from inputs: the same twice, reasons kept, no addresses; real uv against a folder of tiny wheels."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from archwright import locking as module
from archwright.errors import ArchwrightError, Exit
from archwright.lockfile import read_lock
from archwright.locking import HALVES, hash_locks, make_locks
from archwright.targets import target_table

from .tinywheel import tiny_wheel


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: Path, pip_answers_at_once: None) -> Path:
    """A checkout whose only input asks for `app`; uv finds packages in the folder `index` alone."""
    root = tmp_path / "checkout"
    (root / "envs" / "sm100").mkdir(parents=True)
    (root / "pyproject.toml").touch()
    (root / "envs" / "sm100" / "runtime.in").write_text("# all of it\napp>=1  # the reason why\n")
    tiny_wheel(index, "app", "1.0", requires=("lib<2",))
    tiny_wheel(index, "lib", "1.5")
    tiny_wheel(index, "lib", "2.0")
    monkeypatch.setattr(module, "project_root", lambda: root)
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(index))
    return root


def lock(project: Path, **options: bool) -> str:
    (made,) = hash_locks(target_table().targets["sm100"], project / "envs")
    make_locks([made], **options)
    return made.lock.read_text()


def test_a_lock_has_versions_hashes_askers_and_reasons_and_no_address(project: Path, index: Path) -> None:
    text = lock(project)

    packages = read_lock(project / "envs" / "sm100" / "runtime.lock")
    assert {name: str(package.version) for name, package in packages.items()} == {"app": "1.0", "lib": "1.5"}
    assert "# reason: the reason why" in text
    assert "# via -r sm100/runtime.in" in text
    assert "# via app" in text
    assert "x86_64 (glibc >= 2.28) and aarch64 (glibc >= 2.34)" in text.splitlines()[0]
    assert str(index) not in text
    assert "://" not in text


def test_two_runs_give_identical_files_and_newer_versions_wait_for_upgrade(project: Path, index: Path) -> None:
    first = lock(project)
    tiny_wheel(index, "app", "1.1", requires=("lib<2",))

    assert lock(project) == first

    assert "app==1.1" in lock(project, upgrade=True)


def test_overrides_win_and_their_reason_is_in_the_lock(project: Path) -> None:
    overrides = project / "envs" / "sm100" / "runtime.overrides"
    overrides.write_text("lib==2.0  # app works with it\n")

    text = lock(project)

    assert re.search(r"^lib==2\.0 .*\n(    .*\n)*?    # reason: app works with it$", text, re.M)


def test_included_inputs_give_their_reasons_too(project: Path) -> None:
    (project / "envs" / "common.in").write_text("lib==1.5  # from the common part\n")
    (project / "envs" / "sm100" / "runtime.in").write_text("-r ../common.in\napp\n")

    assert "# reason: from the common part" in lock(project)


def test_what_only_one_processor_needs_says_so(project: Path, index: Path) -> None:
    tiny_wheel(index, "fast", "1.0", tag="py3-none-manylinux_2_28_x86_64")
    source = project / "envs" / "sm100" / "runtime.in"
    source.write_text('app\nfast ; platform_machine == "x86_64"\n')

    lock(project)

    fast = read_lock(source.with_suffix(".lock"))["fast"]
    assert fast.marker == 'platform_machine == "x86_64"'


def test_a_version_that_differs_between_processors_is_aw315(project: Path, index: Path) -> None:
    tiny_wheel(index, "fast", "1.0", tag="py3-none-manylinux_2_28_x86_64")
    tiny_wheel(index, "fast", "0.9", tag="py3-none-manylinux_2_28_aarch64")
    (project / "envs" / "sm100" / "runtime.in").write_text("fast\n")

    with pytest.raises(ArchwrightError) as caught:
        lock(project)

    assert caught.value.code == "AW315"
    assert "fast 1.0 on x86_64, 0.9 on aarch64" in caught.value.found


def test_what_cannot_be_solved_is_aw315_with_the_solvers_words_and_changes_nothing(project: Path) -> None:
    before = lock(project)
    (project / "envs" / "sm100" / "runtime.in").write_text("app\nlib>=2\n")

    with pytest.raises(ArchwrightError) as caught:
        lock(project)

    assert caught.value.code == "AW315"
    assert caught.value.exit is Exit.UNFIT
    assert "lib" in caught.value.detail
    assert "runtime.overrides" in caught.value.fix
    assert (project / "envs" / "sm100" / "runtime.lock").read_text() == before


def test_check_names_the_stale_lock_and_writes_nothing(project: Path) -> None:
    before = lock(project)
    assert lock(project, check=True) == before
    (project / "envs" / "sm100" / "runtime.in").write_text("app\nlib==1.5  # now pinned\n")

    with pytest.raises(ArchwrightError) as caught:
        lock(project, check=True)

    assert caught.value.code == "AW322"
    assert caught.value.exit is Exit.CHECK_FAILED
    assert "sm100/runtime" in caught.value.found
    assert (project / "envs" / "sm100" / "runtime.lock").read_text() == before


def test_an_installed_copy_is_not_changed(project: Path) -> None:
    (project / "pyproject.toml").unlink()

    with pytest.raises(ArchwrightError) as caught:
        lock(project)

    assert caught.value.code == "AW109"
    assert not (project / "envs" / "sm100" / "runtime.lock").exists()


def test_every_target_has_both_halves_and_the_tool_its_own(root: Path) -> None:
    names = {lock.name for lock in hash_locks()}

    assert names == {"tool", "dev", *(f"{target}/{half}" for target in target_table().targets for half in HALVES)}
    assert all(lock.lock.is_file() for lock in hash_locks())


def test_real_locks_are_in_the_form_that_is_written(root: Path, tmp_path: Path) -> None:
    """What `env lock` would write from the packages of each lock is the lock: nobody edited it by hand."""
    for each in hash_locks():
        packages = list(read_lock(each.lock).values())
        copy = tmp_path / each.lock.name
        shutil.copy(each.lock, copy)
        reasons = module._reasons(each)
        written = module._text(each, packages, reasons)
        bare = re.compile(r"^    # +.*\n", re.M)
        assert bare.sub("", written) == bare.sub("", copy.read_text())
        for name, reason in reasons.items():
            if name in read_lock(each.lock):
                assert reason.split()[0] in " ".join(read_lock(each.lock)[name].why)
