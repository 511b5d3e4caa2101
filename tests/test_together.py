"""Case B3: what the runtime really loads, asked of a real process."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from archwright.environment import Environment
from archwright.errors import ArchwrightError
from archwright.together import load_together

NCCL = "int ncclGetVersion(int *v) { *v = NUMBER; return 0; }\n"


@pytest.fixture
def runtime(environment: Environment) -> Environment:
    """A runtime with a real Python, in which nothing is installed yet."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", environment.runtime], check=True)
    return environment


def put(environment: Environment, name: str, code: str) -> None:
    """Install a distribution with one module."""
    site = environment.runtime_site
    (site / f"{name}.py").write_text(code)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text(f"{name}.py,,\n{name}-1.0.dist-info/METADATA,,\n{name}-1.0.dist-info/RECORD,,\n")


def put_nccl(environment: Environment, gcc: str, number: int, root: Path | None = None) -> Path:
    library = (root or environment.nccl_root) / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    source = NCCL.replace("NUMBER", str(number))
    command = [gcc, "-shared", "-fPIC", "-x", "c", "-", "-o", library, "-Wl,-soname,libnccl.so.2"]
    subprocess.run(command, input=source, text=True, check=True)
    return library


def lock(tmp_path: Path, *names: str) -> Path:
    path = tmp_path / "runtime.lock"
    path.write_text(
        "".join(f"{name}==1.0 \\\n    --hash=sha256:{'0' * 64}\n    # via -r sm100/runtime.in\n" for name in names)
        + f"other==1.0 \\\n    --hash=sha256:{'0' * 64}\n    # via torch\n"
    )
    return path


def loads(library: Path) -> str:
    return f"import ctypes\nctypes.CDLL({str(library)!r})\n"


def test_b3_one_nccl_for_all_and_its_release_is_asked_of_the_library(
    runtime: Environment, gcc: str, tmp_path: Path
) -> None:
    library = put_nccl(runtime, gcc, 23203)
    put(runtime, "torch", loads(library))
    put(runtime, "user", "import sys\nassert 'torch' in sys.modules\n")
    put(runtime, "other", "raise RuntimeError('nobody asked for it')\n")

    together = load_together(runtime, lock(tmp_path, "torch", "user"))

    assert set(together.imported) == {"torch", "user"}
    assert together.nccl == "2.32.3"
    assert Path(together.nccl_path) == library.resolve()


def test_b3_an_nccl_that_is_too_old_for_deep_ep_is_aw332(runtime: Environment, gcc: str, tmp_path: Path) -> None:
    put(runtime, "torch", loads(put_nccl(runtime, gcc, 22907)))

    with pytest.raises(ArchwrightError) as caught:
        load_together(replace(runtime, nccl="2.29.7"), lock(tmp_path, "torch"))

    assert caught.value.code == "AW332"
    assert "NCCL 2.29.7 is loaded, deep_ep needs 2.32.3" in caught.value.found


def test_b3_another_nccl_than_the_locked_one_is_aw332(runtime: Environment, gcc: str, tmp_path: Path) -> None:
    put(runtime, "torch", loads(put_nccl(runtime, gcc, 23301)))

    with pytest.raises(ArchwrightError) as caught:
        load_together(runtime, lock(tmp_path, "torch"))

    assert "NCCL 2.33.1 is loaded, 2.32.3 is locked" in caught.value.found


def test_b3_two_nccls_in_one_process_are_aw332(runtime: Environment, gcc: str, tmp_path: Path) -> None:
    ours = put_nccl(runtime, gcc, 23203)
    theirs = put_nccl(runtime, gcc, 23203, tmp_path / "opt")
    put(runtime, "torch", loads(ours) + loads(theirs))

    with pytest.raises(ArchwrightError) as caught:
        load_together(runtime, lock(tmp_path, "torch"))

    assert "2 NCCL libraries" in caught.value.found
    assert str(theirs) in caught.value.detail


def test_b3_an_nccl_from_elsewhere_is_aw332(runtime: Environment, gcc: str, tmp_path: Path) -> None:
    put(runtime, "torch", loads(put_nccl(runtime, gcc, 23203, tmp_path / "opt")))

    with pytest.raises(ArchwrightError) as caught:
        load_together(runtime, lock(tmp_path, "torch"))

    assert "outside the environment" in caught.value.found


def test_a_module_that_cannot_be_imported_is_named_with_its_reason(runtime: Environment, tmp_path: Path) -> None:
    put(runtime, "torch", "")
    put(runtime, "user", "raise ImportError('undefined symbol: ncclCommWindowRegister')\n")

    with pytest.raises(ArchwrightError) as caught:
        load_together(runtime, lock(tmp_path, "torch", "user"))

    assert caught.value.code == "AW332"
    assert "user cannot be imported" in caught.value.found
    assert "ncclCommWindowRegister" in caught.value.detail


def test_g3_a_module_that_needs_cann_is_not_verified_where_there_is_none(runtime: Environment, tmp_path: Path) -> None:
    put(runtime, "torch", "")
    put(runtime, "torch_npu", "raise ImportError('libhccl.so: cannot open shared object file: No such file')\n")

    together = load_together(runtime, lock(tmp_path, "torch", "torch-npu"))

    assert together.imported == ("torch",)
    assert together.not_verified == {"torch_npu": "needs CANN (libhccl.so), which is not here"}


def test_a_process_that_dies_is_aw332_and_not_a_traceback(runtime: Environment, tmp_path: Path) -> None:
    put(runtime, "torch", "import os\nos.abort()\n")

    with pytest.raises(ArchwrightError) as caught:
        load_together(runtime, lock(tmp_path, "torch"))

    assert caught.value.code == "AW332"


def test_a_runtime_without_nccl_is_said_as_that(runtime: Environment, tmp_path: Path) -> None:
    put(runtime, "torch", "print('noise')\n")

    assert load_together(runtime, lock(tmp_path, "torch")).nccl == ""
