"""What an AOT pack promises, shown with a small real one: two of DeepGEMM's operations, three kernels.

It is built in copies of the work tree with a JIT cache of their own; environment and sources are the user's.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from archwright.components import components
from archwright.environment import Environment, create_environment
from archwright.manifests import read_manifest
from archwright.project import cache_dir, project_root
from archwright.repro import copy_project
from archwright.simulate import simulation
from archwright.sources import sha256_of
from archwright.targets import target_table

pytestmark = pytest.mark.wheels

#: The operations that are left of each pack's recipe, and the kernels that they have.
SMALL = {
    "deep_gemm_aot": (("tf32_hc_prenorm_gemm", "m_grouped_bf16_gemm_nt_contiguous"), 3),
    "tilelang_ops": (("mhc_sinkhorn_fwd",), 1),
}
NAME = "archwright_aot_deep_gemm"


@pytest.fixture(scope="module")
def environment() -> Environment:
    return create_environment(target_table().targets["sm100"])


class Shop:
    """A copy of the work tree with a small recipe, and a JIT cache that nobody else sees (a mount of its own)."""

    def __init__(
        self, folder: Path, environment: Environment, isolated: list[str], component: str = "deep_gemm_aot"
    ) -> None:
        self.tree, self.jit, self.component = copy_project(folder / "tree"), folder / "jit", components()[component]
        self.target = environment.target
        self.jit.mkdir()
        recipe = self.tree / "csrc" / component / "component.toml"
        recipe.write_text(small_recipe(recipe.read_text(), SMALL[component][0]))
        shapes = (self.tree / "python" / "archwright" / "models" / "deepseek-v4.1-flash.toml").read_text()
        self.shapes = folder / "small.toml"
        self.shapes.write_text(shapes.partition("[tokens]")[0] + "[tokens]\ndecode = [128]\nprefill = [1024]\n")
        self.dist = self.tree / "dist" / self.target
        self.dist.mkdir(parents=True)
        assert self.component.pack is not None
        library = components()[self.component.pack.library].distribution.replace("-", "_")
        for wheel in (project_root() / "dist" / self.target).glob(f"{library}-*.whl"):
            shutil.copy(wheel, self.dist)
        mount = f'mount --bind "{self.jit}" "{cache_dir() / "jit"}" && exec "$@"'
        self.command = [*isolated, "sh", "-c", mount, "sh", str(environment.toolchain / "bin" / "python")]
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith("ARCHWRIGHT")}
        self.variables["PYTHONPATH"] = str(self.tree / "python")

    def start(self, *words: str) -> subprocess.Popen[str]:
        """`archwright aot` of this copy's code, with its output in one pipe."""
        command = [*self.command, "-m", "archwright", "aot", self.target, self.component.name]
        return subprocess.Popen(
            [*command, "--shapes", str(self.shapes), "--offline", "--json", *words],
            cwd=self.tree,
            env=self.variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def aot(self, *words: str) -> tuple[int, str]:
        process = self.start(*words)
        said, _ = process.communicate(timeout=600)
        return process.returncode, said

    def wheels(self) -> list[Path]:
        return sorted(self.dist.glob(f"{self.component.package}-*.whl"))

    def kernels(self) -> dict[str, int]:
        return finished(self.jit)


def finished(jit: Path) -> dict[str, int]:
    """Finished entries of the JIT caches, with the time at which each was compiled or lowered."""
    deepjit = [mark.with_name("kernel.cubin") for mark in jit.glob("*/*/deepjit/cache/*/.committed")]
    compiled = [*deepjit, *jit.glob("*/*/tilelang/*/*/kernels/*/executable.so"), *jit.glob("*/*/ascend/*/build.json")]
    return {file.parent.name: file.stat().st_mtime_ns for file in compiled}


def small_recipe(text: str, operations: tuple[str, ...]) -> str:
    """The recipe with the chosen operations alone."""
    tables = re.split(r"^(?=\[)", text, flags=re.M)
    wanted = tuple(f'[[pack.operations]]\nname = "{name}"\n' for name in operations)
    return "".join(t for t in tables if not t.startswith("[[pack.operations]]") or t.startswith(wanted))


@pytest.fixture(scope="module")
def isolated() -> list[str]:
    """Prefix of a command that may mount what nobody else sees."""
    command = ["unshare", "-rm"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip(f"`{' '.join(command)}` is not permitted here: the JIT cache would be the user's")
    return command


@pytest.fixture(scope="module")
def shop(environment: Environment, isolated: list[str], tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """With the finished pack of DeepGEMM."""
    made = Shop(tmp_path_factory.mktemp("first"), environment, isolated)
    status, said = made.aot()
    assert status == 0, said
    return made


def test_the_small_pack_has_what_was_asked_for(shop: Shop) -> None:
    (wheel,) = shop.wheels()
    manifest = read_manifest(wheel)
    operations, kernels = SMALL["deep_gemm_aot"]

    assert {operation.name for operation in manifest.operations} == set(operations)
    used = {entry for operation in manifest.operations for entry, _ in operation.kernels}
    assert len(shop.kernels()) == len(used) == kernels


def by_pip(shop: Shop, folder: Path, **variables: str) -> tuple[Path, dict[str, int]]:
    """The wheel that plain pip makes (docs/aot.md), with a home and a cache of its own, and what was compiled."""
    for name in ("archives", "compilers", "sources"):
        (folder / "cache").mkdir(parents=True, exist_ok=True)
        (folder / "cache" / name).symlink_to(cache_dir() / name)
    (folder / "home").mkdir()
    command = [shop.command[-1], "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder)]
    settings = {"ARCHWRIGHT_TARGET": shop.target, "ARCHWRIGHT_SHAPES": str(shop.shapes)}
    command += [word for name, value in settings.items() for word in ("-C", f"cmake.define.{name}={value}")]
    command += [str(shop.tree / "csrc" / shop.component.name)]
    own = {"HOME": str(folder / "home"), "ARCHWRIGHT_CACHE": str(folder / "cache"), "ARCHWRIGHT_OFFLINE": "1"}
    done = subprocess.run(
        command, env=shop.variables | own | variables, capture_output=True, text=True, check=False, umask=0o077
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob(f"{shop.component.package}-*.whl")), finished(folder / "cache" / "jit")


def test_another_user_home_cache_and_checkout_make_the_same_bytes(
    shop: Shop, environment: Environment, isolated: list[str], tmp_path: Path
) -> None:
    """No space in the folder's name: DeepJIT calls compilers without quotes."""
    other = Shop(tmp_path / "elsewhere-in-a-folder-with-a-longer-name", environment, isolated)

    wheel, compiled = by_pip(other, tmp_path / "pip", USER="somebody", LOGNAME="somebody", TZ="Asia/Tokyo")

    assert_same(shop.wheels()[0], shop.kernels(), wheel, compiled)


@pytest.mark.parametrize("target", ["sm100", "ascend950"])
def test_tilelangs_kernels_are_the_same_bytes_too(target: str, isolated: list[str], tmp_path: Path) -> None:
    environment = create_environment(target_table().targets[target])
    if target == "sm100" and not (components()["tilelang_ops"].folder / "budget.sm100.toml").is_file():
        pytest.skip("no kernel budget of tilelang_ops: its wheel is refused")
    shops = [Shop(tmp_path / name, environment, isolated, "tilelang_ops") for name in ("one", "another-checkout")]

    one, two = (by_pip(shop, tmp_path / shop.tree.parent.name / "pip", USER=shop.tree.parent.name) for shop in shops)

    assert len(one[1]) == SMALL["tilelang_ops"][1]
    assert_same(*one, *two)


def assert_same(one: Path, compiled: dict[str, int], two: Path, again: dict[str, int]) -> None:
    """Both wheels were compiled from nothing, and are equal: first what tells most."""
    assert compiled.keys() == again.keys()
    assert not set(compiled.values()) & set(again.values()), "compiled again, not shared"
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(two) as second:
        assert first.namelist() == second.namelist()
        assert [name for name in first.namelist() if first.read(name) != second.read(name)] == []
    assert (one.name, sha256_of(one)) == (two.name, sha256_of(two))


def wait_for(what: str, there: Callable[[], object], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 300
    while not there():
        assert process.poll() is None, f"ended before {what}: {process.communicate()[0]}"
        assert time.monotonic() < end, f"no {what} in five minutes"
        time.sleep(0.1)


def running_in(folder: Path) -> list[str]:
    """Commands of processes that name `folder`."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in words:
            commands.append(words)
    return commands


def test_interrupted_it_leaves_nothing_half_written_and_goes_on_where_it_stopped(
    environment: Environment, isolated: list[str], tmp_path: Path
) -> None:
    """A second run of the same cell is told to wait, and the first one is interrupted after a kernel or two."""
    shop = Shop(tmp_path, environment, isolated)
    first = shop.start()
    wait_for("a finished kernel", shop.kernels, first)

    status, said = shop.aot("--no-wait")
    first.send_signal(signal.SIGINT)
    stopped, _ = first.communicate(timeout=60)

    assert (status, json.loads(said.partition("{")[1] + said.partition("{")[2])["error"]["code"]) == (5, "AW503"), said
    assert first.returncode == 130, stopped
    assert "AW504" in stopped
    assert running_in(shop.tree) == []
    assert shop.wheels() == []
    assert not list(shop.tree.glob("build/**/*.part"))
    before = shop.kernels()
    assert 0 < len(before) < 3

    status, said = shop.aot()

    assert status == 0, said
    assert len(shop.kernels()) == 3
    assert before.items() <= shop.kernels().items(), "what was compiled is not compiled again"
    (wheel,) = shop.wheels()
    assert len(read_manifest(wheel).operations) == 2


USE = """
import torch, deep_gemm
deep_gemm.set_pdl(True)
a = torch.empty(128, 16384, device="cuda", dtype=torch.bfloat16)
b = torch.empty(24, 16384, device="cuda", dtype=torch.float32)
deep_gemm.tf32_hc_prenorm_gemm(a, b, torch.empty(16, 128, 24, device="cuda"), torch.empty(16, 128, device="cuda"), 16)
print("a hit")
"""


@pytest.fixture
def use(shop: Shop, environment: Environment, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Install the pack and its library into a folder, and call an operation there without any compiler."""
    site = tmp_path / "site"
    wheels = [*shop.wheels(), next((shop.tree / "dist" / "sm100").glob("deepinfer_gemm-*.whl"))]
    pip = [str(environment.toolchain / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(site), *map(str, wheels)], check=True)

    def call(jit: str = "") -> tuple[int, str]:
        variables = {"HOME": str(tmp_path), "PATH": "/nonexistent", "PYTHONPATH": str(site), "ARCHWRIGHT_JIT": jit}
        command = [str(environment.runtime / "bin" / "python"), "-B", "-c", USE]
        variables |= simulation("b200", environment)
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return call


@pytest.mark.parametrize("damage", ["changed", "cut off", "lost", "added to"])
def test_a_corrupt_entry_is_noticed_before_it_is_used(
    use: Callable[..., tuple[int, str]], tmp_path: Path, damage: str
) -> None:
    cubin = next((tmp_path / "site" / NAME / "root").glob("deepjit/cache/*tf32*/kernel.cubin"))
    data = cubin.read_bytes()
    assert use("strict") == (0, "a hit\n")
    if damage == "lost":
        cubin.unlink()
    else:
        changed = {"changed": data[:-1] + bytes([data[-1] ^ 1]), "cut off": data[:-100], "added to": data + b"x"}
        cubin.write_bytes(changed[damage])

    strict, lenient = use("strict"), use()

    for status, said in (strict, lenient):
        assert status != 0
        assert "AW608: AOT pack is damaged" in said
        assert cubin.parent.name in said
        assert "pip install --force-reinstall --no-deps archwright-aot-deep-gemm" in said
    assert "the AOT pack is not used" in lenient[1]
