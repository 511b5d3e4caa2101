"""The import guard in wheels for Ascend (case G3): what it says where CANN does not load, and when it stays silent."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from archwright.cann import guard_facts
from archwright.targets import target_table

from . import guardsite
from .canntree import LAYOUTS, Layout, make_cann
from .guardsite import NVML, Site, assert_stopped

site = guardsite.site

ASCEND = target_table().targets["ascend950"]


@dataclass
class AscendSite:
    """A package for Ascend where torch_npu is installed; `top` is the only usual place of a CANN, and it is empty."""

    site: Site
    top: Path
    gcc: str

    def facts(self, **changed: Any) -> None:
        assert ASCEND.cann is not None
        cann = guard_facts(ASCEND.cann) | {
            "roots": [f"{self.top}/cann", f"{self.top}/ascend-toolkit/latest"],
            "device": str(self.top.parent / "davinci_manager"),
        }
        self.site.facts(
            **{"nccl": None, "devices": dict(ASCEND.devices), "cann": cann, "torch_npu": "2.13.0rc1", **changed}
        )

    def cann(self, place: str = "cann", version: str = "9.2.0", layout: Layout = "9.2", without: str = "") -> Path:
        """A made-up CANN with its libraries; their content is empty, and `without` is the one that is not there."""
        root = self.top / place
        root.parent.mkdir(parents=True, exist_ok=True)
        make_cann(root, version, platform.machine(), layout)
        for name in set(self.libraries) - {without}:
            command = [self.gcc, "-shared", "-x", "c", "/dev/null", "-o", root / "lib64" / name, f"-Wl,-soname,{name}"]
            subprocess.run(command, check=True)
        return root

    @property
    def libraries(self) -> list[str]:
        facts = json.loads((self.site.folder / "pkg" / "_archwright.json").read_text())
        libraries: list[str] = facts["cann"]["libraries"]
        return libraries

    def run(self, root: Path | None = None, code: str = "import pkg", **environment: str) -> Any:
        """Run `code`; with `root`, in a shell in which its set_env.sh was sourced."""
        if root is not None:
            sourced = {"ASCEND_HOME_PATH": str(root), "LD_LIBRARY_PATH": f"{root}/lib64", "PATH": f"{root}/bin:/bin"}
            environment = sourced | environment
        return self.site.run(code, **environment)


@pytest.fixture
def ascend(site: Site, tmp_path: Path, gcc: str) -> AscendSite:
    if site.run("import ctypes; ctypes.CDLL('libhccl.so')").returncode == 0:
        pytest.skip("this machine has CANN where the loader looks by itself")
    found = AscendSite(site, tmp_path / "Ascend", gcc)
    found.facts()
    site.install("torch-npu", "2.13.0rc1")
    (tmp_path / "davinci_manager").touch()
    return found


@pytest.mark.parametrize(("layout", "version", "place"), LAYOUTS)
def test_g3_where_cann_is_sourced_it_is_imported_in_silence(
    layout: Layout, version: str, place: str, ascend: AscendSite
) -> None:
    run = ascend.run(ascend.cann(place, version, layout))
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize(
    ("layout", "version", "place", "script"),
    [("8.x", "8.5.0", "ascend-toolkit/latest", "ascend-toolkit"), ("9.2", "9.2.0", "cann", "cann")],
)
def test_g3_aw611_nothing_is_sourced_and_the_line_that_mends_it_is_named(
    layout: Layout, version: str, place: str, script: str, ascend: AscendSite
) -> None:
    root = ascend.cann(place, version, layout)
    run = ascend.run()
    assert_stopped(
        run,
        "AW611",
        "libhccl.so: cannot open shared object file",
        "neither ASCEND_HOME_PATH nor ASCEND_TOOLKIT_HOME is set",
        "CANN 9.2 or newer",
        f"fix:    `source {ascend.top / script}/set_env.sh`\n",
    )
    line = f". {ascend.top / script}/set_env.sh && echo $LD_LIBRARY_PATH"
    sourced = subprocess.run(["sh", "-c", line], env={}, capture_output=True, text=True, check=True).stdout.strip()
    assert sourced.startswith(str(root))
    assert ascend.run(LD_LIBRARY_PATH=sourced).returncode == 0, "the fix is one"


def test_g3_aw611_no_cann_at_all(ascend: AscendSite) -> None:
    assert_stopped(ascend.run(), "AW611", "install CANN 9.2, then `source <its root>/set_env.sh`")


@pytest.mark.parametrize("name", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"])
def test_g3_aw611_a_variable_that_names_no_folder(name: str, ascend: AscendSite) -> None:
    ascend.cann()
    gone = str(ascend.top / "cann-9.1.0")
    run = ascend.run(**{name: gone})
    assert_stopped(run, "AW611", f"{name} names {gone}, which is not a folder")
    assert f"fix:    `unset {name}`, then `source {ascend.top}/cann/set_env.sh`\n" in run.stderr


@pytest.mark.parametrize("slash", ["", "/"])
def test_g3_aw611_named_but_its_libraries_are_not_on_the_path(slash: str, ascend: AscendSite) -> None:
    """Also with the name of another CANN's folder in LD_LIBRARY_PATH; the active one is the one to source."""
    ascend.cann("cann")
    root = ascend.cann("second root")
    run = ascend.run(ASCEND_HOME_PATH=f"{root}{slash}", LD_LIBRARY_PATH="/usr/lib:")
    assert_stopped(run, "AW611", f"names {root}{slash}, and LD_LIBRARY_PATH has nothing of it")
    assert f"fix:    `source '{root}/set_env.sh'`\n" in run.stderr.replace("//", "/")


def test_g3_aw611_a_root_without_a_script(ascend: AscendSite) -> None:
    root = ascend.cann()
    (root / "set_env.sh").unlink()
    run = ascend.run(ASCEND_HOME_PATH=str(root))
    assert_stopped(run, "AW611", f"{root} has no set_env.sh: install CANN 9.2")


@pytest.mark.parametrize("missing", ["libhccl.so", "libge_runner.so", "libacl_tdt_channel.so"])
def test_aw611_sourced_and_not_whole(missing: str, ascend: AscendSite) -> None:
    root = ascend.cann(without=missing)
    run = ascend.run(root)
    assert_stopped(run, "AW611", f"{missing}: cannot open", f"LD_LIBRARY_PATH has {root}/lib64", "all others with CANN")


def test_aw611_sourced_without_the_drivers_libraries(ascend: AscendSite, tmp_path: Path) -> None:
    """In a container without the driver's folder: CANN's libraries need the driver's."""
    root = ascend.cann()
    gone, library = tmp_path / "libascend_hal.so", root / "lib64" / "libascendcl.so"
    for target, rest in ((gone, ["-Wl,-soname,libascend_hal.so"]), (library, ["-Wl,--no-as-needed", str(gone)])):
        subprocess.run([ascend.gcc, "-shared", "-x", "c", "/dev/null", "-x", "none", "-o", target, *rest], check=True)
    gone.unlink()

    run = ascend.run(root)

    assert_stopped(run, "AW611", "libascend_hal.so: cannot open", "mount /usr/local/Ascend/driver")


def test_aw612_no_device_file(ascend: AscendSite, tmp_path: Path) -> None:
    root = ascend.cann()
    (tmp_path / "davinci_manager").unlink()
    assert_stopped(ascend.run(root), "AW612", f"{tmp_path}/davinci_manager is not there", "--device", "Ascend 950PR")


@pytest.mark.parametrize("version", ["2.12.0.post2", "2.14.0", None])
def test_aw610_another_torch_npu(version: str | None, ascend: AscendSite) -> None:
    root = ascend.cann()
    ascend.site.install("torch-npu", version)
    found = f"torch_npu {version}" if version else "no torch_npu"
    assert_stopped(ascend.run(root), "AW610", f"found:  {found}\n", "built against 2.13.0rc1", "torch-npu==2.13.0rc1")


@pytest.mark.parametrize("version", ["2.13.0rc1", "2.13.0", "2.13.0.post2"])
def test_another_build_of_torch_npu_for_the_same_torch_is_accepted(version: str, ascend: AscendSite) -> None:
    ascend.site.install("torch-npu", version)
    assert ascend.run(ascend.cann()).returncode == 0


def test_aw605_a_wheel_for_another_processor_stops_before_anything_is_loaded(ascend: AscendSite) -> None:
    ascend.facts(processor="riscv64")
    assert_stopped(ascend.run(), "AW605", "on riscv64")


def test_a_gpu_beside_the_npu_is_none_of_its_business(ascend: AscendSite) -> None:
    root = ascend.cann()
    ascend.site.library("libnvidia-ml.so.1", NVML, ascend.gcc)
    libraries = f"{root}/lib64:{ascend.site.libraries}"
    assert ascend.run(root, LD_LIBRARY_PATH=libraries, FAKE_DEVICES="9.0").returncode == 0


def test_g3_torch_that_loads_torch_npu_unasked_gets_the_guards_words(ascend: AscendSite) -> None:
    """`import deepinfer` works; `import torch` after it loads torch_npu, long before the extension is imported."""
    ascend.site.package("from . import _archwright\n_archwright.check_before('pkg._C')\n")
    (ascend.site.folder / "torch_npu.py").write_text("raise ImportError('libhccl.so: cannot open')\n")
    (ascend.site.folder / "torch.py").write_text(
        "try:\n import torch_npu\nexcept ImportError as e:\n raise RuntimeError('Failed to load') from e\n"
    )
    ascend.cann()

    assert ascend.run(code="import pkg").returncode == 0
    assert_stopped(ascend.run(code="import pkg, torch"), "AW611", "set_env.sh")
    assert "AW611" not in ascend.run(code="import pkg, torch", ARCHWRIGHT_GUARD="off").stderr


def test_to_look_where_a_module_is_stops_nobody(ascend: AscendSite) -> None:
    """transformers asks so whether torch_npu is installed."""
    ascend.site.package("from . import _archwright\n_archwright.check_before('pkg._C')\n")
    for name in ("torch_npu.py", "pkg/_C.py"):
        (ascend.site.folder / name).write_text("")
    code = "import pkg, importlib.util as u; print(u.find_spec('torch_npu').origin, u.find_spec('pkg._C').origin)"
    run = ascend.run(code=code)
    assert run.stdout.split() == [f"{ascend.site.folder}/{name}" for name in ("torch_npu.py", "pkg/_C.py")]


def test_a_wheel_for_cuda_does_not_look_at_torch_npu(site: Site) -> None:
    site.package("from . import _archwright\n_archwright.check_before('pkg._C')\n")
    (site.folder / "torch_npu.py").write_text("")
    site.install("torch", None)
    assert site.run("import pkg, torch_npu").returncode == 0
