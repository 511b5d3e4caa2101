"""The conda flavour of a lock: made by the real conda-lock against a local channel, read, rendered."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import rattler
import yaml

from archwright.cann import cann_at, check_cann_floor
from archwright.condalock import read_conda_lock
from archwright.condalocking import PLATFORMS, FrontEnd, front_end, lock_conda, render_explicit
from archwright.errors import ArchwrightError
from archwright.process import run
from archwright.targets import target_table

from .channel import Channel, write_inputs

TARGETS = ("sm100", "sm90", "ascend950")
VARIABLES = ("ARCHWRIGHT_CONDA_CHANNEL", "ARCHWRIGHT_CANN_CHANNEL")
OURS = FrontEnd("archwright", (sys.executable, "-P", "-m", "archwright.condafront"))


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Channel:
    made = Channel(tmp_path_factory.mktemp("conda") / "channel")
    made.add("alpha", depends=["beta >=1", "__glibc >=2.17"])
    made.add("beta", "1.1")
    made.add("beta", "1.2")
    made.add("data", subdirs=["noarch"])
    made.add("old", tar_bz2=True)
    made.add("only-here", subdirs=["linux-64"])
    made.add("gpu", depends=["__cuda >=14"])
    made.add("future", depends=["__glibc >=2.99"])
    made.index()
    return made


@pytest.fixture(autouse=True)
def no_conda(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable and no program of the developer's own conda."""
    for name in [name for name in os.environ if name.startswith("CONDA_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def use(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> Channel:
    monkeypatch.setenv("ARCHWRIGHT_CONDA_CHANNEL", channel.url)
    return channel


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """A lock of one package, valid unless `changes` (old -> new text) make it something else."""

    def write(*changes: tuple[str, str]) -> Path:
        text = LOCK
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "sm100" / "conda-lock.yml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


LOCK = f"""\
version: 1
metadata:
  content_hash:
    linux-64: {"c" * 64}
  channels:
  - url: ${{ARCHWRIGHT_CONDA_CHANNEL}}
    used_env_vars: []
  platforms:
  - linux-64
  sources:
  - environment.yml
package:
- name: beta
  version: '1.2'
  manager: conda
  platform: linux-64
  dependencies:
    __glibc: '>=2.17'
  url: ${{ARCHWRIGHT_CONDA_CHANNEL}}/linux-64/beta-1.2-h1_0.conda
  hash:
    md5: {"d" * 32}
    sha256: {"a" * 64}
  category: main
  optional: false
"""


def test_a_lock_names_files_by_hash_for_both_platforms_and_no_address(use: Channel, tmp_path: Path) -> None:
    # Given a specification with a package for one processor only
    folder = write_inputs(tmp_path / "sm100", "alpha\ndata\nold\nonly-here  # [linux64]")
    steps: list[str] = []

    # When it is locked
    path = lock_conda(folder, front=OURS, report=steps.append)

    # Then
    lock = read_conda_lock(path)
    assert lock.platforms == PLATFORMS
    assert set(lock.packages("linux-64")) == {"alpha", "beta", "data", "old", "only-here"}
    assert set(lock.packages("linux-aarch64")) == {"alpha", "beta", "data", "old"}
    assert lock.packages("linux-64")["beta"][:2] == ("1.2", "0")
    assert lock.channels == ("${ARCHWRIGHT_CONDA_CHANNEL}",)
    assert {package.url.partition("/")[0] for package in lock.entries} == {"${ARCHWRIGHT_CONDA_CHANNEL}"}
    text = path.read_text()
    assert "://" not in text
    assert str(use.path) not in text
    assert text.startswith("# Made by `archwright env lock sm100 --flavour conda`")
    assert any("9 packages" in step for step in steps)
    assert [p.name for p in folder.iterdir() if "partial" in p.name] == []


def test_locking_again_changes_nothing_also_from_scratch(use: Channel, tmp_path: Path) -> None:
    folder = write_inputs(tmp_path / "sm100", "alpha\ndata")
    first = lock_conda(folder, platforms=["linux-64"], front=OURS).read_bytes()

    again = lock_conda(folder, platforms=["linux-64"], front=OURS).read_bytes()
    (folder / "conda-lock.yml").unlink()
    scratch = lock_conda(folder, platforms=["linux-64"], front=OURS).read_bytes()

    assert first == again == scratch


def test_a_lock_keeps_its_packages_until_an_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    growing = Channel(tmp_path / "growing" / "channel")
    growing.add("beta", "1.1", subdirs=["linux-64"])
    growing.index()
    monkeypatch.setenv("ARCHWRIGHT_CONDA_CHANNEL", f"{growing.path}/")  # a path, with a slash at its end
    folder = write_inputs(tmp_path / "sm100", "beta")
    lock_conda(folder, platforms=["linux-64"], front=OURS)
    growing.add("beta", "1.2", subdirs=["linux-64"])
    growing.index()

    kept = read_conda_lock(lock_conda(folder, platforms=["linux-64"], front=OURS))
    upgraded = read_conda_lock(lock_conda(folder, platforms=["linux-64"], front=OURS, upgrade=True))

    assert kept.packages("linux-64")["beta"][0] == "1.1"
    assert upgraded.packages("linux-64")["beta"][0] == "1.2"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [("alpha\nbeta 9.*", "beta 9"), ("nothing-like-it", "nothing-like-it"), ("only-here", "only-here")],
)
def test_what_cannot_be_solved_is_told_in_the_solvers_words(
    use: Channel, tmp_path: Path, wanted: str, words: str
) -> None:
    folder = write_inputs(tmp_path / "sm100", wanted)
    (folder / "conda-lock.yml").write_text("not_yet_locked_here: true\n")

    with pytest.raises(ArchwrightError) as caught:
        lock_conda(folder, front=OURS)

    assert caught.value.code == "AW315"
    assert words in caught.value.detail
    assert "Traceback" not in caught.value.detail
    assert ("linux-aarch64" if wanted == "only-here" else "linux-64") in caught.value.found
    assert (folder / "conda-lock.yml").read_text() == "not_yet_locked_here: true\n"


@pytest.mark.parametrize(("package", "has", "lacks"), [("gpu", "__cuda", "14"), ("future", "__glibc", "2.99")])
def test_virtual_packages_come_from_the_specification_alone(
    use: Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, has: str, lacks: str
) -> None:
    """Neither this machine's, nor overrides of a shell, nor a virtual-packages.yml where the user happens to be."""
    here = write_inputs(tmp_path / "elsewhere", package, {has: "99"})
    monkeypatch.chdir(here)
    monkeypatch.setenv(f"CONDA_OVERRIDE_{has[2:].upper()}", "99")
    folder = write_inputs(tmp_path / "sm100", package)

    with pytest.raises(ArchwrightError, match="AW315") as caught:
        lock_conda(folder, platforms=["linux-64"], front=OURS)
    write_inputs(folder, package, {has: lacks})
    lock = read_conda_lock(lock_conda(folder, platforms=["linux-64"], front=OURS))

    assert f"{has} >={lacks}" in caught.value.detail
    assert package in lock.packages("linux-64")


@pytest.mark.parametrize(("value", "found"), [(None, "not set"), ("conda-forge", "'conda-forge'"), (" ", "not set")])
def test_a_channel_without_an_address_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, found: str
) -> None:
    monkeypatch.delenv("ARCHWRIGHT_CONDA_CHANNEL", raising=False)
    if value is not None:
        monkeypatch.setenv("ARCHWRIGHT_CONDA_CHANNEL", value)

    with pytest.raises(ArchwrightError) as caught:
        lock_conda(write_inputs(tmp_path / "sm100", "alpha"), front=OURS)

    assert caught.value.code == "AW315"
    assert found in caught.value.found
    assert "export ARCHWRIGHT_CONDA_CHANNEL=" in caught.value.fix


@pytest.mark.parametrize(
    "address",
    ["file:///no/such/channel", "http://127.0.0.1:9/channel", "http://u:secret@127.0.0.1:9/t/secret2/channel"],
)
def test_a_channel_that_cannot_be_reached_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("ARCHWRIGHT_CONDA_CHANNEL", address)
    folder = write_inputs(tmp_path / "sm100", "alpha")

    with pytest.raises(ArchwrightError, match="AW315") as caught:
        lock_conda(folder, platforms=["linux-64"], front=OURS)

    host = address.rpartition("@")[2].removeprefix("http://").partition("/t/")[0]
    assert host in caught.value.detail
    assert "secret" not in str(caught.value)
    assert not (folder / "conda-lock.yml").exists()


@pytest.mark.parametrize("says_password", [True, False])
def test_neither_host_nor_password_of_a_channel_gets_into_the_lock(
    channel: Channel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: Callable[[str, str], Path],
    says_password: bool,
) -> None:
    """Whether the front end gives addresses with the password, as ours does, or leaves it out."""
    front = OURS
    if not says_password:
        text = f'{shlex.join(OURS.command)} "$@" > "$0.out"; status=$?; sed s/user:secret@// "$0.out"; exit $status'
        front = FrontEnd("discreet", (str(script("discreet", text)),))

    with channel.served() as host:
        monkeypatch.setenv("ARCHWRIGHT_CONDA_CHANNEL", f"http://user:secret@{host}")
        path = lock_conda(write_inputs(tmp_path / "sm100", "alpha"), platforms=["linux-64"], front=front)

    assert set(read_conda_lock(path).packages("linux-64")) == {"alpha", "beta"}
    assert [word for word in ("secret", "127.0.0.1", "://") if word in path.read_text()] == []


def test_an_address_that_would_stay_in_the_lock_is_refused(use: Channel, channel: Channel, tmp_path: Path) -> None:
    folder = write_inputs(tmp_path / "sm100", "alpha")
    inputs = folder / "environment.yml"
    inputs.write_text(inputs.read_text().replace("${ARCHWRIGHT_CONDA_CHANNEL}", channel.url))

    with pytest.raises(ArchwrightError, match="an address in the lock"):
        lock_conda(folder, platforms=["linux-64"], front=OURS)

    assert not (folder / "conda-lock.yml").exists()


def test_locking_asks_nobody_but_the_channel(use: Channel, no_network: list[str], tmp_path: Path) -> None:
    folder = write_inputs(tmp_path / "sm100", "alpha")
    program = "import sys, pathlib; from archwright.condalocking import *; "
    program += "lock_conda(pathlib.Path(sys.argv[1]), front=FrontEnd('ours', "
    program += "(sys.executable, '-P', '-m', 'archwright.condafront')))"

    subprocess.run([*no_network, sys.executable, "-c", program, folder], check=True, capture_output=True)

    assert "alpha" in read_conda_lock(folder / "conda-lock.yml").packages("linux-64")


def test_an_explicit_list_is_rendered_by_conda_lock(use: Channel, tmp_path: Path) -> None:
    lock = lock_conda(write_inputs(tmp_path / "sm100", "alpha\ndata"), platforms=["linux-64"], front=OURS)

    text = render_explicit(lock, "linux-64")

    assert "@EXPLICIT" in text.splitlines()
    urls = re.findall(r"^(file:\S+)#[0-9a-f]{32}$", text, re.M)
    assert {url.rpartition("/")[2] for url in urls} == {"alpha-1.0-0.conda", "beta-1.2-0.conda", "data-1.0-0.conda"}
    with pytest.raises(ArchwrightError, match="AW317"):
        render_explicit(lock, "osx-64")


def test_a_lock_is_read_as_data(written: Callable[..., Path]) -> None:
    lock = read_conda_lock(written())

    (package,) = lock.on("linux-64")
    assert (package.name, package.version, package.build) == ("beta", "1.2", "h1_0")
    assert (package.md5, package.sha256, package.category) == ("d" * 32, "a" * 64, "main")
    assert package.dependencies == (("__glibc", ">=2.17"),)
    assert lock.packages("linux-64") == {"beta": ("1.2", "h1_0", "a" * 64)}
    assert lock.content_hash == {"linux-64": "c" * 64}
    with pytest.raises(ArchwrightError, match="AW317") as caught:
        lock.packages("linux-aarch64")
    assert "linux-64" in caught.value.found


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([("version: 1\n", "version: 2\n")], "format 2"),
        ([("version: 1\n", "")], "version"),
        ([("version: 1\n", "version: [\n")], "not YAML"),
        ([("  platforms:\n  - linux-64\n", "")], "platforms"),
        ([("manager: conda", "manager: pip")], "package of pip"),
        ([(f"    sha256: {'a' * 64}\n", "")], "no sha256"),
        ([(f"sha256: {'a' * 64}", f"sha256: {'A' * 64}")], "no sha256"),
        ([(f"sha256: {'a' * 64}", "sha256: 12")], "no sha256"),
        ([("  url: ${ARCHWRIGHT_CONDA_CHANNEL}/linux-64/beta-1.2-h1_0.conda\n", "")], "url"),
        ([("beta-1.2-h1_0.conda", "beta-1.3-h1_0.conda")], "another package"),
        ([("beta-1.2-h1_0.conda", "beta-1.2-h1_0.zip")], "another package"),
        ([("/linux-64/beta", "/osx-64/beta")], "not of linux-64"),
        ([("  platform: linux-64", "  platform: linux-aarch64")], "linux-aarch64"),
        ([("version: '1.2'", "version: 1.2")], "string"),
        ([("package:\n", "package: []\nrest:\n")], "no package for linux-64"),
        ([(LOCK, "[]")], "TypeError"),
        ([(LOCK, "")], "TypeError"),
        ([(LOCK[LOCK.index("- name") :], 2 * LOCK[LOCK.index("- name") :])], "twice"),
    ],
)
def test_a_damaged_lock_is_refused(written: Callable[..., Path], changes: list[tuple[str, str]], words: str) -> None:
    with pytest.raises(ArchwrightError) as caught:
        read_conda_lock(written(*changes))

    assert caught.value.code == "AW319"
    assert words in caught.value.found


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_lock_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "conda-lock.yml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ArchwrightError, match="AW319") as caught:
        read_conda_lock(path)

    assert str(path) in caught.value.found


def test_every_front_end_is_found_in_its_turn(
    script: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert front_end().kind == "archwright"
    assert "archwright-conda" in run([front_end().executable(tmp_path), "--version"])
    for name in ("micromamba", "mamba", "conda"):
        path = script(name, "exit 0")
        assert front_end() == FrontEnd(name, (str(path),))
    named = script("my-conda", "exit 0")
    monkeypatch.setenv("CONDA_EXE", str(named))
    assert front_end() == FrontEnd("conda", (str(named),))


def test_without_any_front_end_every_way_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "rattler", None)

    with pytest.raises(ArchwrightError) as caught:
        front_end()

    assert caught.value.code == "AW320"
    said = str(caught.value)
    assert [word for word in ("conda", "mamba", "micromamba", "archwright[conda]") if word not in said] == []


@pytest.mark.parametrize("missing", ["environment.yml", "virtual-packages.yml"])
def test_inputs_that_are_missing_are_named(use: Channel, tmp_path: Path, missing: str) -> None:
    folder = write_inputs(tmp_path / "sm100", "alpha")
    (folder / missing).unlink()

    with pytest.raises(ArchwrightError, match="AW319") as caught:
        lock_conda(folder, front=OURS)

    assert missing in caught.value.found


def test_without_conda_lock_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "conda_lock", None)

    with pytest.raises(ArchwrightError, match="AW320") as caught:
        lock_conda(write_inputs(tmp_path / "sm100", "alpha"))

    assert "archwright[conda]" in caught.value.fix


def specified(folder: Path, subdir: str) -> dict[str, str]:
    """name -> a version that fits, of every package that environment.yml names for `subdir`."""
    other = {"linux-64": "[aarch64]", "linux-aarch64": "[linux64]"}[subdir]
    lines = [line for line in (folder / "environment.yml").read_text().splitlines() if not line.endswith(other)]
    wanted = [line.partition(" ") for line in yaml.safe_load("\n".join(lines))["dependencies"]]
    return {name: re.sub(r"[>=]|\.\*$", "", version) or "1.0" for name, _, version in wanted}


def test_sm90_has_the_inputs_of_sm100(root: Path) -> None:
    for name in ("environment.yml", "virtual-packages.yml"):
        assert (root / "envs" / "sm90" / name).read_text() == (root / "envs" / "sm100" / name).read_text()


@pytest.mark.parametrize("target", [target for target in TARGETS if target != "sm90"])
def test_our_specifications_can_be_solved_where_their_packages_exist(
    target: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With empty packages: names, selectors and constraints are sound. Nothing is said about real ones."""
    # Given
    source = root / "envs" / target
    wanted = {subdir: specified(source, subdir) for subdir in PLATFORMS}
    made = Channel(tmp_path / "made" / "channel")
    for subdir, packages in wanted.items():
        for name, version in packages.items():
            made.add(name, version, subdirs=[subdir])
    made.index()
    for variable in VARIABLES:
        monkeypatch.setenv(variable, made.url)
    folder = tmp_path / target
    folder.mkdir()
    for name in ("environment.yml", "virtual-packages.yml"):
        shutil.copyfile(source / name, folder / name)

    # When
    lock = read_conda_lock(lock_conda(folder, front=OURS))

    # Then
    for subdir in PLATFORMS:
        assert {name: p[0] for name, p in lock.packages(subdir).items()} == wanted[subdir]
        assert any("sysroot_" + subdir == name for name in wanted[subdir])
    assert not set(wanted["linux-64"]) & {"gcc_linux-aarch64", "gxx_linux-aarch64"}


@pytest.mark.parametrize("target", TARGETS)
def test_our_locks_say_that_they_are_none_yet(target: str, root: Path) -> None:
    path = root / "envs" / target / "conda-lock.yml"

    with pytest.raises(ArchwrightError) as caught:
        read_conda_lock(path)

    assert caught.value.code == "AW316"
    command = f"archwright env lock {target} --flavour conda"
    assert command in caught.value.fix
    assert yaml.safe_load(path.read_text())["command"] == command
    assert "sha256" not in path.read_text()


@pytest.mark.parametrize("target", TARGETS)
def test_our_specifications_hold_no_address_and_no_package_of_pip(target: str, root: Path) -> None:
    texts = {path.name: path.read_text() for path in (root / "envs" / target).glob("*.yml")}

    assert len(texts) == 3
    assert [name for name, text in texts.items() if "://" in text] == []
    content = yaml.safe_load(texts["environment.yml"])
    assert all(isinstance(line, str) for line in content["dependencies"])
    assert all(re.fullmatch(r"\$\{\w+\}", channel) for channel in content["channels"])
    assert set(yaml.safe_load(texts["virtual-packages.yml"])["subdirs"]) == set(content["platforms"]) == set(PLATFORMS)


def test_both_flavours_have_the_same_release_of_cuda_and_the_same_parts_of_it(root: Path) -> None:
    names = {
        "cudart": "cuda-cudart-dev",
        "nvrtc": "cuda-nvrtc-dev",
        "nvtx": "cuda-nvtx-dev",
        "profiler": "cuda-profiler-api",
        "crt": "cuda-nvcc",  # cuda-nvcc brings both
        "nvvm": "cuda-nvcc",
        **{name: f"cuda-{name}" for name in ("nvcc", "cccl", "cuobjdump", "nvdisasm")},
        **{f"cu{name}": f"libcu{name}-dev" for name in ("blas", "sparse", "solver", "rand", "fft")},
    }
    hashed = (root / "envs" / "sm100" / "toolchain.in").read_text()
    match = re.search(r"^cuda-toolkit\[(\S+)\]==(\d+\.\d+)", hashed, re.M)
    assert match

    wanted = specified(root / "envs" / "sm100", "linux-64")

    assert wanted["cuda-version"] == wanted["cuda-nvcc"] == match[2]
    assert {names[part] for part in match[1].split(",")} - set(wanted) == set()


CANNS = ("8.5.0", "9.1.0", "9.1.0.beta.3", "9.2.0.alpha.1", "9.2.0.beta.2", "9.2.0", "9.2.1")


@pytest.mark.parametrize("version", CANNS)
def test_the_conda_flavour_asks_for_the_cann_that_doctor_accepts(version: str, root: Path, tmp_path: Path) -> None:
    """Neither falls below the target's floor; in both a pre-release of it passes (conda's spelling of 9.2.0-beta.2)."""
    text = yaml.safe_load((root / "envs" / "ascend950" / "environment.yml").read_text())
    wanted = [line.partition(" ")[2] for line in text["dependencies"] if line.startswith("cann-")]
    floor = target_table().targets["ascend950"].cann
    assert floor is not None and len(wanted) == 2
    try:
        check_cann_floor(replace(cann_at(tmp_path, "a test"), version=version), floor)
        accepted = True
    except ArchwrightError:
        accepted = False
    assert [rattler.VersionSpec(spec).matches(rattler.Version(version)) for spec in wanted] == [accepted, accepted]
