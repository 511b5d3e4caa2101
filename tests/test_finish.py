"""From the raw wheel to the published one: tag, record, licences, SBOM and the gates, on a tiny real module."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from packaging.utils import parse_wheel_filename

from archwright.abi import read_abi, smallest_policy
from archwright.backend import Request
from archwright.cann import cann_at
from archwright.components import Component
from archwright.environment import Environment
from archwright.errors import ArchwrightError
from archwright.finish import BuildReport, finish_metadata, finish_wheel
from archwright.sources import SourceTree
from archwright.targets import target_table

from .canntree import make_cann
from .fuzz.builders import FakeEntry, ascend_kernels, cce

SM100, ASCEND = (target_table().targets[name] for name in ("sm100", "ascend950"))
FLOOR = SM100.floor
VERSION = "1.0+cu132.sm100"
INFO = f"tiny-{VERSION}.dist-info"
METADATA = """\
Metadata-Version: 2.2
Name: tiny
Version: {version}
Summary: {long}
License-Expression: MIT
License-File: WRONG
Requires-Dist: torch==2.13.*

The description.
"""

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def module(tmp_path: Path, gcc: str) -> Callable[..., bytes]:
    """Compile a few lines of C into a shared library and return its bytes."""

    def compile_(*flags: str, source: str = '#include <stdio.h>\nint hello(void) { return puts("hello"); }\n') -> bytes:
        target = tmp_path / "module.so"
        command = [gcc, "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(target), *flags]
        subprocess.run(command, input=source, text=True, check=True)
        return target.read_bytes()

    return compile_


@pytest.fixture
def source(tmp_path: Path, make_recipe: Callable[..., Component]) -> SourceTree:
    path = tmp_path / "tree"
    path.mkdir()
    (path / "LICENSE").write_text("free\n")
    return SourceTree("tiny", "1.0", "c" * 64, path, {"0001-a.patch": "e" * 64})


@pytest.fixture
def request_(make_recipe: Callable[..., Component], environment: Environment) -> Request:
    return Request(make_recipe("c" * 64), SM100, SM100.gencodes, environment)


@pytest.fixture
def raw(tmp_path: Path, module: Callable[..., bytes]) -> Callable[..., Path]:
    """Write a wheel as scikit-build-core hands it over."""

    def write(
        binary: bytes | None = None,
        *,
        backwards: bool = False,
        without: str = "",
        folder: str = "raw",
        version: str = VERSION,
    ) -> Path:
        info = f"tiny-{version}.dist-info"
        members = {
            "tiny/__init__.py": b"value = 1\n",
            "tiny/_C.cpython-312-x86_64-linux-gnu.so": module() if binary is None else binary,
            f"{info}/METADATA": METADATA.format(version=version, long="a long line " * 20).encode(),
            f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: cp312-cp312-linux\n",
        }
        members.pop(without, None)
        members[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in members).encode()
        path = tmp_path / folder / f"tiny-{version}-cp312-cp312-linux_{os.uname().machine}.whl"
        path.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            for name in sorted(members, reverse=backwards):
                archive.writestr(zipfile.ZipInfo(name, (2020 + backwards, 1, 1, 0, 0, 0)), members[name])
        return path

    return write


Finish = Callable[..., Path]


@pytest.fixture
def done(tmp_path: Path, request_: Request, source: SourceTree) -> Finish:
    def call(path: Path, request: Request = request_, folder: str = "out") -> Path:
        facts: dict[str, Any] = {"target": request.target.name, "tier": "official"}
        return finish_wheel(path, tmp_path / folder, request, source, facts, BuildReport(tmp_path / "rejected"))

    return call


def read(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name).decode()


def test_the_tag_comes_from_the_binary_and_agrees_everywhere(raw: Callable[..., Path], done: Finish) -> None:
    wheel = done(raw())

    name, version, _, tags = parse_wheel_filename(wheel.name)
    assert (str(name), str(version)) == ("tiny", "1.0+cu132.sm100")
    assert all(tag.platform.startswith("manylinux_2_") for tag in tags)
    assert [str(tag) for tag in tags] == [
        line.removeprefix("Tag: ") for line in read(wheel, f"{INFO}/WHEEL").splitlines() if line.startswith("Tag: ")
    ]
    assert "Generator: archwright" in read(wheel, f"{INFO}/WHEEL")


def test_the_record_names_every_file_with_its_hash(raw: Callable[..., Path], done: Finish) -> None:
    with zipfile.ZipFile(done(raw())) as archive:
        rows = list(csv.reader(archive.read(f"{INFO}/RECORD").decode().splitlines()))
        assert [row[0] for row in rows] == archive.namelist()
        assert archive.namelist()[-1] == f"{INFO}/RECORD"
        for name, digest, size in rows[:-1]:
            data = archive.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={expected}", len(data))


def test_pip_installs_it(raw: Callable[..., Path], done: Finish, tmp_path: Path) -> None:
    """pip checks the record, the tag and the metadata."""
    if sys.version_info[:2] != (3, 12):
        pytest.skip("the wheel is for Python 3.12")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", tmp_path / "site"]
    subprocess.run([*pip, done(raw())], check=True)
    assert (tmp_path / "site" / "tiny" / "__init__.py").is_file()


def test_two_times_the_same_bytes(raw: Callable[..., Path], done: Finish) -> None:
    """Neither the order nor the time stamps of the raw wheel matter."""
    first = done(raw(), folder="one")
    second = done(raw(backwards=True, folder="raw2"), folder="two")
    assert first.read_bytes() == second.read_bytes()


def test_the_time_stamps_follow_source_date_epoch(
    raw: Callable[..., Path], done: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    with zipfile.ZipFile(done(raw())) as archive:
        assert {info.date_time for info in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}


def test_licences_are_those_of_the_recipe(raw: Callable[..., Path], done: Finish) -> None:
    wheel = done(raw())
    metadata = read(wheel, f"{INFO}/METADATA").splitlines()
    assert [line for line in metadata if line.startswith("License-File")] == ["License-File: LICENSE"]
    assert read(wheel, f"{INFO}/licenses/LICENSE") == "free\n"
    assert "Requires-Dist: torch==2.13.*" in metadata
    assert f"Summary: {'a long line ' * 20}".strip() in [line.strip() for line in metadata], "lines are not folded"
    assert metadata[-1] == "The description."


def test_prepared_metadata_is_the_same(
    raw: Callable[..., Path], done: Finish, request_: Request, tmp_path: Path
) -> None:
    path = tmp_path / "METADATA"
    path.write_text(METADATA.format(version=VERSION, long="a long line " * 20))
    finish_metadata(path, request_.component)
    assert path.read_text() == read(done(raw()), f"{INFO}/METADATA")


def test_archwright_json_says_what_it_is_and_claims_nothing_more(
    raw: Callable[..., Path], done: Finish, tmp_path: Path, environment: Environment
) -> None:
    """Case A3: compiling is level 1 only."""
    text = read(done(raw()), f"{INFO}/archwright.json")
    record = json.loads(text)

    assert record["source"] == {"distribution": "tiny", "sha256": "c" * 64, "patches": {"0001-a.patch": "e" * 64}}
    assert record["toolchain"]["nvcc"] == "13.2.86"
    assert record["toolchain"]["locks"] == environment.locks
    assert record["abi"]["libraries"] == ["libc.so.6"]
    assert record["abi"]["needs"]["GLIBC"]
    assert record["claims"]["correct"].startswith("not verified")
    assert record["claims"]["performs"].startswith("not verified")
    assert str(tmp_path) not in text
    assert record["gencodes"] == [], "no device code, so no claim about it"


def test_g5_aw411_a_wheel_without_its_kernels_is_kept_apart(
    raw: Callable[..., Path], done: Finish, request_: Request, tmp_path: Path
) -> None:
    """Its recipe has device code, and nothing of it is in the module."""
    component = replace(request_.component, units=(replace(request_.component.units[0], path="csrc/a.cu"),))
    error = error_of(done, raw(), replace(request_, component=component), tmp_path / "out")

    assert error.code == "AW411"
    assert "no kernel at all; sm_100a, sm_103a expected" in error.found
    (kept,) = (tmp_path / "rejected").glob("*.whl")
    assert str(kept) in error.fix
    assert json.loads(read(kept, f"{INFO}/archwright.json"))["gencodes"] == ["sm_100a", "sm_103a"]


def test_the_sbom_is_valid_and_names_what_is_inside(raw: Callable[..., Path], done: Finish) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    text = read(done(raw()), f"{INFO}/sboms/tiny.cdx.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bom = json.loads(text)
    parts = {part["name"]: part for part in bom["components"]}
    assert {"tiny", "torch", "CCCL"} <= set(parts)
    assert parts["tiny"]["hashes"] == [{"alg": "SHA-256", "content": "c" * 64}]
    assert bom["metadata"]["component"]["version"] == "1.0+cu132.sm100"


def error_of(done: Finish, path: Path, request: Request | None = None, folder: Path | None = None) -> ArchwrightError:
    with pytest.raises(ArchwrightError) as caught:
        done(path, request) if request else done(path)
    assert folder is None or not list(folder.glob("*")), "no wheel, whole or partial"
    return caught.value


@pytest.mark.parametrize("missing", ["tiny/__init__.py", "tiny/_C.cpython-312-x86_64-linux-gnu.so"])
def test_g5_aw401_a_wheel_without_its_files_fails(
    missing: str, raw: Callable[..., Path], done: Finish, tmp_path: Path
) -> None:
    error = error_of(done, raw(without=missing), folder=tmp_path / "out")
    assert error.code == "AW401"
    assert error.exit == 1
    assert "tiny/_C.*.so" in error.found or "tiny/__init__.py" in error.found


def test_aw402_symbols_above_the_floor(
    raw: Callable[..., Path], done: Finish, request_: Request, tmp_path: Path
) -> None:
    """Case G6: the wheel would want a newer glibc than the target promises."""
    old = replace(SM100, floor={"glibc": "2.1", "GLIBCXX": "3.4.1", "CXXABI": "1.3"})
    error = error_of(done, raw(), replace(request_, target=old), tmp_path / "out")
    assert error.code == "AW402"
    assert "GLIBC_2." in error.found
    assert "floor 2.1" in error.found


def test_aw402_a_library_that_is_neither_the_systems_nor_named(
    raw: Callable[..., Path], done: Finish, module: Callable[..., bytes], tmp_path: Path, gcc: str
) -> None:
    subprocess.run(
        [gcc, "-shared", "-x", "c", "/dev/null", "-o", tmp_path / "libstray.so", "-Wl,-soname,libstray.so.1"],
        check=True,
    )
    binary = module("-Wl,--no-as-needed", f"-L{tmp_path}", "-lstray")
    error = error_of(done, raw(binary), folder=tmp_path / "out")
    assert error.code == "AW402"
    assert "no manylinux policy" in error.found


@pytest.mark.parametrize("name", ["libcuda.so.1", "libcudart.so.13", "libnccl.so.2", "libtorch_cpu.so", "libc10.so"])
def test_what_must_stay_outside_is_excluded_by_name(
    name: str, raw: Callable[..., Path], done: Finish, module: Callable[..., bytes], tmp_path: Path, gcc: str
) -> None:
    stub = tmp_path / "stub.so"
    subprocess.run([gcc, "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", stub, f"-Wl,-soname,{name}"], check=True)
    wheel = done(raw(module("-Wl,--no-as-needed", str(stub))))
    assert "manylinux" in wheel.name
    assert name in json.loads(read(wheel, f"{INFO}/archwright.json"))["abi"]["libraries"]


@pytest.mark.parametrize(
    "flag",
    ["-Wl,-rpath,/opt/nccl/lib", "-Wl,--disable-new-dtags,-rpath,/x", "-Wl,-rpath,$ORIGIN:/x", "-Wl,-rpath,relative"],
)
def test_aw403_a_run_path_of_the_build_machine(
    flag: str, raw: Callable[..., Path], done: Finish, module: Callable[..., bytes], tmp_path: Path
) -> None:
    """What upstream's DeepEP does."""
    error = error_of(done, raw(module(flag)), folder=tmp_path / "out")
    assert error.code == "AW403"
    assert "tiny/_C" in error.found
    assert flag.rpartition(",")[2].rpartition(":")[2] in error.found


def test_a_run_path_inside_the_wheel_is_fine(
    raw: Callable[..., Path], done: Finish, module: Callable[..., bytes]
) -> None:
    assert done(raw(module("-Wl,-rpath,$ORIGIN:$ORIGIN/lib"))).is_file()


def test_the_abi_is_read_from_the_binary(raw: Callable[..., Path]) -> None:
    abi = read_abi(raw())
    assert abi.platform.startswith("manylinux_2_")
    assert set(abi.needs) <= {"GLIBC", "GLIBCXX", "CXXABI"}
    assert abi.needs["GLIBC"].startswith("2.")


# ------------------------------------------------------------------------------------------------------ Ascend

ASCEND_VERSION = "1.0+cann92.ascend950"
#: A library that carries device code as CANN's `ascendc_library` does, and needs a newer glibc than the oldest policy.
CARRIER = """
#include <dlfcn.h>
__asm__(".section .ascend.kernel.{soc}.ops, \\"a\\"\\n.incbin \\"{path}\\"\\n.previous");
void *hello(void) {{ return dlopen("", 1); }}
"""


@pytest.fixture
def ascend(request_: Request, tmp_path: Path) -> Request:
    """For Ascend, of a recipe with device code, with a CANN whose compiler only says what it is."""
    cann = cann_at(make_cann(tmp_path / "cann", processor=os.uname().machine), "a test")
    assert cann.bisheng
    cann.bisheng.write_text("#!/bin/sh\necho bisheng of a test\n")
    component = replace(request_.component, units=(replace(request_.component.units[0], path="csrc/a.asc"),))
    environment = replace(request_.environment, target="ascend950", nvcc="")
    return Request(component, ASCEND, (), environment, cann=cann)


@pytest.fixture
def carrier(tmp_path: Path, module: Callable[..., bytes], gcc: str) -> Callable[..., bytes]:
    """A module with this entry symbol for this SoC, linked to a stand-in for CANN's runtime."""

    def make(entry: str = "scatter", soc: str = "ascend950pr_9599") -> bytes:
        (tmp_path / "ops").write_bytes(ascend_kernels((1, cce([FakeEntry(entry)]))))
        stub = tmp_path / "stub.so"
        name = "-Wl,-soname,libascendcl.so"
        subprocess.run([gcc, "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", stub, name], check=True)
        return module("-Wl,--no-as-needed", str(stub), source=CARRIER.format(soc=soc, path=tmp_path / "ops"))

    return make


def test_g4_g6_a_wheel_for_ascend_has_the_binarys_tag_and_lists_its_operations(
    raw: Callable[..., Path], done: Finish, ascend: Request, carrier: Callable[..., bytes]
) -> None:
    """The tag is that of its glibc symbols alone: CANN's libraries are left out by name."""
    wheel = done(raw(carrier(), version=ASCEND_VERSION), ascend)

    record = json.loads(read(wheel, f"tiny-{ASCEND_VERSION}.dist-info/archwright.json"))
    said = record["toolchain"]["cann"]
    assert (said["version"], said["bisheng"], len(said["bisheng_sha256"])) == ("9.2.0", "bisheng of a test", 64)
    sbom = json.loads(read(wheel, f"tiny-{ASCEND_VERSION}.dist-info/sboms/tiny.cdx.json"))
    assert {"CANN", "CCCL"} & {part["name"] for part in sbom["components"]} == {"CANN"}
    _, _, _, tags = parse_wheel_filename(wheel.name)
    glibc = record["abi"]["needs"]["GLIBC"]
    (platform,) = {tag.platform for tag in tags}
    assert platform == record["abi"]["platform"] == smallest_policy((), [f"GLIBC_{glibc}"], os.uname().machine)
    assert platform.startswith("manylinux_2_")
    assert "libascendcl.so" in record["abi"]["libraries"]
    assert record["inventory"] == {"dav-3510": ["scatter"]}
    assert record["claims"]["device_compile"] == "not verified here"


def test_g4_aw424_operations_for_another_chip_only(
    raw: Callable[..., Path], done: Finish, ascend: Request, carrier: Callable[..., bytes], tmp_path: Path
) -> None:
    """The kind of fault: built for A5, and the operation is there for the other chip alone."""
    path = raw(carrier(soc="ascend910b1"), version=ASCEND_VERSION)
    error = error_of(done, path, ascend, tmp_path / "out")
    assert error.code == "AW424"
    assert "device code for ascend910b1; dav-3510 expected" in error.found


def test_g5_a_wheel_for_ascend_without_its_files_or_its_kernels_fails(
    raw: Callable[..., Path], done: Finish, ascend: Request, module: Callable[..., bytes], tmp_path: Path
) -> None:
    """The kind of fault: a step failed unnoticed, and the wheel is empty."""
    empty = raw(module(), version=ASCEND_VERSION)
    assert error_of(done, empty, ascend, tmp_path / "out").found.endswith("no Ascend device code at all")
    without = raw(without="tiny/_C.cpython-312-x86_64-linux-gnu.so", version=ASCEND_VERSION, folder="without")
    assert error_of(done, without, ascend, tmp_path / "out").code == "AW401"


def test_g6_aw402_a_wheel_for_ascend_above_the_targets_floor(
    raw: Callable[..., Path], done: Finish, ascend: Request, carrier: Callable[..., bytes], tmp_path: Path
) -> None:
    old = replace(ASCEND, floor={"glibc": "2.1", "GLIBCXX": "3.4.1", "CXXABI": "1.3"})
    path = raw(carrier(), version=ASCEND_VERSION)
    assert error_of(done, path, replace(ascend, target=old), tmp_path / "out").code == "AW402"
