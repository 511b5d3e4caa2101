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

from archwright.environment import Environment, create_environment
from archwright.manifests import read_manifest
from archwright.project import cache_dir, project_root
from archwright.repro import copy_project
from archwright.simulate import simulation
from archwright.sources import sha256_of
from archwright.targets import target_table

pytestmark = pytest.mark.wheels

OPERATIONS = ("tf32_hc_prenorm_gemm", "m_grouped_bf16_gemm_nt_contiguous")
NAME = "archwright_aot_deep_gemm"


@pytest.fixture(scope="module")
def environment() -> Environment:
    return create_environment(target_table().targets["sm100"])


class Shop:
    """A copy of the work tree with a small recipe, and a JIT cache that nobody else sees (a mount of its own)."""

    def __init__(self, folder: Path, environment: Environment, isolated: list[str]) -> None:
        self.tree, self.jit, self.environment = copy_project(folder / "tree"), folder / "jit", environment
        self.jit.mkdir()
        recipe = self.tree / "csrc" / "deep_gemm_aot" / "component.toml"
        recipe.write_text(small_recipe(recipe.read_text()))
        shapes = (self.tree / "python" / "archwright" / "models" / "deepseek-v4.1-flash.toml").read_text()
        self.shapes = folder / "small.toml"
        self.shapes.write_text(shapes.partition("[tokens]")[0] + "[tokens]\ndecode = [128]\nprefill = [1024]\n")
        (self.tree / "dist" / "sm100").mkdir(parents=True)
        for wheel in (project_root() / "dist" / "sm100").glob("deepinfer_gemm-*.whl"):
            shutil.copy(wheel, self.tree / "dist" / "sm100")
        mount = f'mount --bind "{self.jit}" "{cache_dir() / "jit"}" && exec "$@"'
        self.command = [*isolated, "sh", "-c", mount, "sh", str(environment.toolchain / "bin" / "python")]
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith("ARCHWRIGHT")}
        self.variables["PYTHONPATH"] = str(self.tree / "python")

    def start(self, *words: str) -> subprocess.Popen[str]:
        """`archwright aot` of this copy's code, with its output in one pipe."""
        command = [*self.command, "-m", "archwright", "aot", "sm100", "deep_gemm_aot", "--shapes", str(self.shapes)]
        return subprocess.Popen(
            [*command, "--offline", "--json", *words],
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
        return sorted((self.tree / "dist" / "sm100").glob(f"{NAME}-*.whl"))

    def kernels(self) -> dict[str, int]:
        return finished(self.jit)


def finished(jit: Path) -> dict[str, int]:
    """Finished entries of a JIT cache, with the time at which each was compiled."""
    found = jit.glob("*/*/deepjit/cache/*/.committed")
    return {mark.parent.name: (mark.parent / "kernel.cubin").stat().st_mtime_ns for mark in found}


def small_recipe(text: str) -> str:
    """The recipe with the chosen operations alone."""
    tables = re.split(r"^(?=\[)", text, flags=re.M)
    wanted = tuple(f'[[pack.operations]]\nname = "{name}"\n' for name in OPERATIONS)
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
    """With the finished pack."""
    made = Shop(tmp_path_factory.mktemp("first"), environment, isolated)
    status, said = made.aot()
    assert status == 0, said
    return made


def test_the_small_pack_has_what_was_asked_for(shop: Shop) -> None:
    (wheel,) = shop.wheels()
    manifest = read_manifest(wheel)

    assert {operation.name for operation in manifest.operations} == set(OPERATIONS)
    assert len(shop.kernels()) == len({entry for op in manifest.operations for entry, _ in op.kernels}) == 3


def test_another_user_home_cache_and_checkout_make_the_same_bytes(
    shop: Shop, environment: Environment, isolated: list[str], tmp_path: Path
) -> None:
    """With plain pip, as docs/aot.md says. No space in the folder's name: DeepJIT calls compilers without quotes."""
    other = Shop(tmp_path / "elsewhere-in-a-folder-with-a-longer-name", environment, isolated)
    (tmp_path / "home").mkdir()
    (tmp_path / "cache").mkdir()
    for name in ("archives", "compilers", "sources"):
        (tmp_path / "cache" / name).symlink_to(cache_dir() / name)
    command = [str(environment.toolchain / "bin" / "python"), "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    settings = {"ARCHWRIGHT_TARGET": "sm100", "ARCHWRIGHT_SHAPES": str(other.shapes)}
    command += [word for name, value in settings.items() for word in ("-C", f"cmake.define.{name}={value}")]
    command += ["--wheel-dir", str(tmp_path), str(other.tree / "csrc" / "deep_gemm_aot")]
    variables = other.variables | {"HOME": str(tmp_path / "home"), "USER": "somebody", "LOGNAME": "somebody"}
    variables |= {"ARCHWRIGHT_CACHE": str(tmp_path / "cache"), "ARCHWRIGHT_OFFLINE": "1", "TZ": "Asia/Tokyo"}

    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, umask=0o077)

    assert done.returncode == 0, done.stdout + done.stderr
    compiled = finished(tmp_path / "cache" / "jit")
    assert compiled.keys() == shop.kernels().keys()
    assert not set(compiled.values()) & set(shop.kernels().values()), "compiled again, not shared"
    (one,), two = shop.wheels(), next(tmp_path.glob(f"{NAME}-*.whl"))
    with zipfile.ZipFile(one) as first, zipfile.ZipFile(two) as second:
        name = f"{NAME}/manifest.json"
        assert json.loads(first.read(name))["files"] == json.loads(second.read(name))["files"]
        assert first.namelist() == second.namelist()
        assert [n for n in first.namelist() if first.read(n) != second.read(n)] == []
    assert sha256_of(one) == sha256_of(two)


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
