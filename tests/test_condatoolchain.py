"""The conda flavour from end to end, against a channel of this test. nvcc and GCC are stand-ins; the rest is real."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from archwright import environment, freeze, locking, project
from archwright.condatoolchain import without_cuda

from .channel import Channel
from .conftest import Run
from .tinywheel import tiny_wheel, write_lock

MACHINE = os.uname().machine
SUBDIR = "linux-64" if MACHINE == "x86_64" else f"linux-{MACHINE}"
CUDA = f"targets/{'x86_64' if MACHINE == 'x86_64' else 'sbsa'}-linux"
GCC = """\
#!/bin/sh
case "$*" in
    *-dump*) echo 14.3.0 ;;
    *-dM*) cat >/dev/null; echo "#define __cpp_lib_format 1" ;;
    *-shared*) for word; do out=$last; last=$word; [ "$out" = -o ] && : >"$word"; done; exit 0 ;;
    *) cat >/dev/null ;;
esac
"""
ENVIRONMENT = """\
channels:
  - ${ARCHWRIGHT_CONDA_CHANNEL}
platforms: [linux-64, linux-aarch64]
dependencies: [python 3.12.*, cuda-nvcc 13.2.*, gxx 14.*]
"""
VIRTUAL = """\
subdirs:
  linux-64: {packages: {__unix: "0", __linux: "5.10", __glibc: "2.28"}}
  linux-aarch64: {packages: {__unix: "0", __linux: "5.10", __glibc: "2.28"}}
"""


@pytest.fixture
def locks(tmp_path: Path, cache: Path, index: Path, pip_answers_at_once: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with locks of sm100 for tiny wheels, and a channel with what its environment.yml asks for."""
    channel = Channel(tmp_path / "channel")
    channel.add("python", "3.12.4", files={"bin/python3.12": f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'})
    tools = {f"bin/{MACHINE}-conda-linux-gnu-{name}": GCC for name in ("gcc", "g++")}
    channel.add("gxx", "14.3.0", files=tools)
    nvcc = {
        "bin/nvcc": "#!/bin/sh\necho 'Cuda compilation tools, release 13.2, V13.2.86'\n",
        f"{CUDA}/include/cuda.h": "#define CUDA_VERSION 13020\n",
        f"{CUDA}/include/cuda_runtime_api.h": "#define CUDART_VERSION 13020\n",
        f"{CUDA}/lib/libcudart.so.13": "",
        "nvvm/bin/cicc": "",
    }
    channel.add("cuda-nvcc", "13.2.86", files=nvcc)
    channel.index()
    root = tmp_path / "checkout"
    folder = root / "envs" / "sm100"
    folder.mkdir(parents=True)
    (root / "pyproject.toml").touch()
    (folder / "environment.yml").write_text(ENVIRONMENT)
    (folder / "virtual-packages.yml").write_text(VIRTUAL)
    for half, names in (("toolchain", ("cmake", "nvidia-cuda-nvcc")), ("runtime", ("torch", "nvidia-nccl-cu13"))):
        write_lock(folder / f"{half}.lock", *(tiny_wheel(index, name, "2.32.3") for name in names))
    for module in (environment, freeze, locking, project):
        monkeypatch.setattr(module, "project_root", lambda: root)
    monkeypatch.setattr(environment, "_SPACE", 1 << 20)
    for name, value in {"UV_CACHE_DIR": tmp_path / "uv", "UV_NO_INDEX": 1, "UV_FIND_LINKS": index}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("ARCHWRIGHT_CONDA_CHANNEL", channel.url)
    return folder


def test_lock_create_check_and_change(locks: Path, run: Run) -> None:
    status, out, err = run("env", "lock", "sm100", "--flavour", "conda", "--json")
    assert status == 0, err
    assert json.loads(out)[0]["changed"]
    assert "file://" not in (locks / "conda-lock.yml").read_text()

    status, out, err = run("env", "create", "sm100", "--flavour", "conda", "--json")
    assert status == 0, err
    made = json.loads(out)
    assert (made["flavour"], made["nvcc"], made["gcc"]) == ("conda", "13.2.86", "14.3.0")
    path = Path(made["path"])
    assert path.name.startswith("sm100-conda-")
    assert (path / "cuda" / "bin").resolve() == (path / "conda" / "bin").resolve()
    site = path / "toolchain" / "lib" / "python3.12" / "site-packages"
    assert (site / "cmake.py").is_file()
    assert not (site / "nvidia_cuda_nvcc.py").exists(), "CUDA comes from conda"
    assert str(path / "conda" / "include") in (path / "compiler" / "g++").read_text()

    words = ("env", "check", "sm100", "--flavour", "conda", "--no-imports")
    status, _, err = run(*words)
    assert status == 0, err

    header = path / "conda" / CUDA / "include" / "cuda.h"
    header.write_text("#define CUDA_VERSION 13000\n")
    (path / "conda" / "nvvm" / "bin" / "cicc").unlink()
    status, _, err = run(*words)
    assert status == 1
    assert "cuda.h of cuda-nvcc was changed" in err
    assert "cicc of cuda-nvcc is missing" in err


def test_the_default_flavour_is_another_environment(locks: Path, run: Run) -> None:
    assert run("env", "lock", "sm100", "--flavour", "conda")[0] == 0
    assert run("env", "create", "sm100", "--flavour", "conda")[0] == 0

    assert run("env", "check", "sm100", "--python", sys.executable)[0] == 4


def test_what_was_not_locked_is_aw316_with_the_command(locks: Path, root: Path, run: Run) -> None:
    (locks / "conda-lock.yml").write_text((root / "envs" / "sm100" / "conda-lock.yml").read_text())

    status, _, err = run("env", "create", "sm100", "--flavour", "conda")

    assert status == 4
    assert "AW316" in err
    assert "archwright env lock sm100 --flavour conda" in err


@pytest.mark.parametrize(
    "words",
    [
        ("env", "create", "sm100", "--flavour", "conda", "--python", "3.12"),
        ("env", "lock", "--flavour", "conda"),
        ("env", "lock", "sm100", "--flavour", "conda", "--check"),
    ],
)
def test_what_this_flavour_cannot_do_is_wrong_usage(words: tuple[str, ...], locks: Path, run: Run) -> None:
    status, _, err = run(*words)
    assert (status, "AW109" in err) == (2, True)


def test_cuda_is_left_out_of_the_lock_and_nothing_else() -> None:
    cuda = "nvidia-cuda-nvcc==13 \\\n    --hash=sha256:1\n"
    before, after = "# top\ncmake==4 \\\n    --hash=sha256:0\n    # via x\n", "wheel==1 \\\n    --hash=sha256:2\n"

    assert without_cuda(before + cuda + after) == before + after
