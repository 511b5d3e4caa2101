"""Reading wheels as packers write them, and what random damage does to them."""

from __future__ import annotations

import base64
import hashlib
import io
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archwright.errors import ArchwrightError
from archwright.wheelfile import WheelFile, check_record, read_wheel

FILE_NAME = "tiny-1.0+cu132.sm100-cp312-cp312-manylinux_2_28_x86_64.manylinux2014_x86_64.whl"
INFO = "tiny-1.0+cu132.sm100.dist-info"
TAGS = ("cp312-cp312-manylinux_2_28_x86_64", "cp312-cp312-manylinux2014_x86_64")
FILES = {
    "tiny/__init__.py": b"value = 1\n" * 20,
    "tiny/_C.so": b"\x7fELF" + bytes(2000),
    "tiny-1.0+cu132.sm100.data/scripts/run": b"#!python\n",
    f"{INFO}/METADATA": b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0+cu132.sm100\n\nA wheel.\n",
    f"{INFO}/WHEEL": "".join(["Wheel-Version: 1.0\n", *(f"Tag: {tag}\n" for tag in TAGS)]).encode(),
    f"{INFO}/archwright.json": b'{"target": "sm100"}\n',
}


def with_record(files: dict[str, bytes]) -> dict[str, bytes]:
    rows = [f"{name},sha256={digest('sha256', data)},{len(data)}\n" for name, data in files.items()]
    return {**files, f"{INFO}/RECORD": "".join([*rows, f"{INFO}/RECORD,,\n"]).encode()}


def digest(algorithm: str, data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.new(algorithm, data).digest()).rstrip(b"=").decode()


def real_wheel(files: dict[str, bytes]) -> bytes:
    """A wheel as Python's own library writes it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            wheel.writestr(name, data)
    return out.getvalue()


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of these bytes under a wheel's name."""

    def write(data: bytes, name: str = FILE_NAME) -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def test_a_wheel_is_read_whole(write: Callable[..., Path]) -> None:
    path = write(real_wheel(with_record(FILES)))

    wheel = read_wheel(path)

    assert wheel.members == with_record(FILES)
    assert (wheel.size, wheel.sha256) == (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    assert (wheel.name, wheel.version, wheel.build, wheel.python, wheel.abi, wheel.platform, wheel.info) == (
        "tiny",
        "1.0+cu132.sm100",
        "",
        "cp312",
        "cp312",
        "manylinux_2_28_x86_64.manylinux2014_x86_64",
        INFO,
    )
    assert wheel.fields("METADATA", "version") == ("1.0+cu132.sm100",)
    assert wheel.fields("METADATA", "no such field") == ()
    assert wheel.wheel_tags() == TAGS
    assert wheel.archwright() == {"target": "sm100"}
    assert check_record(wheel) == []
    assert len(repr(wheel)) < 1000, "the content does not belong into a message"


def test_what_pip_brings_along_is_read_as_zipfile_reads_it() -> None:
    import ensurepip

    path = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"))

    wheel = read_wheel(path)

    with zipfile.ZipFile(path) as archive_:
        assert wheel.members == {n: archive_.read(n) for n in archive_.namelist() if not n.endswith("/")}
    assert (wheel.name, wheel.wheel_tags(), wheel.archwright()) == ("pip", ("py3-none-any",), None)
    assert check_record(wheel) == []


class Streamed(io.BytesIO):
    """A file that cannot seek, as a pipe: zipfile writes sizes after the data then."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: object) -> int:
        raise OSError("cannot seek")

    def tell(self) -> int:
        raise OSError("cannot tell")


@pytest.mark.parametrize("zip64", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_every_form_that_zipfile_writes_is_read(
    write: Callable[..., Path], method: int, stream: bool, zip64: bool
) -> None:
    out = Streamed() if stream else io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        file.writestr("tiny/", b"")
        file.writestr("tiny/empty.py", b"")
        file.writestr("tiny/grüß.py", b"x = 1\n")
        for name, data in FILES.items():
            with file.open(name, "w", force_zip64=zip64) as member:
                member.write(data)

    wheel = read_wheel(write(out.getvalue()))

    assert wheel.members == {"tiny/empty.py": b"", "tiny/grüß.py": b"x = 1\n", **FILES}


def read_or_refuse(path: Path) -> WheelFile | None:
    try:
        wheel = read_wheel(path, max_bytes=1 << 20)
    except ArchwrightError as error:
        assert error.code in ("AW419", "AW420")
        assert error.found.isprintable()
        return None
    check_record(wheel)
    wheel.fields("METADATA", "Name"), wheel.wheel_tags(), wheel.archwright()
    return wheel


SEED = real_wheel(with_record(FILES))


@settings(max_examples=400, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_the_bytes_there_are_two_codes_and_one_meaning(
    write: Callable[..., Path], data: st.DataObject
) -> None:
    """Where a changed wheel is still read, Python's own library reads the same files in it."""
    content = bytearray(SEED)
    for _ in range(data.draw(st.integers(1, 3))):
        # half of the changes hit the directory, where the structure is
        places = st.integers(0, len(content) - 1) | st.integers(max(0, len(content) - 700), len(content) - 1)
        at = data.draw(places)
        match data.draw(st.sampled_from(["flip", "set", "cut", "drop", "insert", "repeat"])):
            case "flip":
                content[at] ^= 1 << data.draw(st.integers(0, 7))
            case "set":
                content[at : at + 4] = data.draw(st.sampled_from([bytes(4), b"\xff" * 4, b"PK\1\2", b"PK\3\4"]))
            case "cut":
                del content[max(at, 1) :]
            case "drop":
                del content[max(at, 1) : at + data.draw(st.integers(1, 40))]
            case "insert":
                content[at:at] = data.draw(st.binary(min_size=1, max_size=40))
            case "repeat":
                content[at:at] = content[at : at + 60]
    path = write(bytes(content))

    wheel = read_or_refuse(path)

    if wheel is not None:
        with zipfile.ZipFile(path) as other:
            assert wheel.members == {n: other.read(n) for n in other.namelist() if not n.endswith("/")}


def test_each_single_byte_is_looked_at(write: Callable[..., Path]) -> None:
    """A wheel whose bytes differ is refused, or differs in nothing that a reader of the files could see."""
    dice = random.Random(7)
    kept = 0
    for at in range(len(SEED)):
        wheel = read_or_refuse(write(SEED[:at] + bytes([SEED[at] ^ 1 << dice.randrange(8)]) + SEED[at + 1 :]))
        if wheel is not None:
            assert wheel.members == with_record(FILES)
            kept += 1
    assert kept < len(SEED) / 4, "only dates, versions of the format and permissions may vary"


def test_inspecting_starts_fast() -> None:
    """The slow modules stay out until somebody asks for what they read."""
    code = "import sys, archwright.wheelfile; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert not {"email", "json", "packaging", "packaging.utils"} & set(result.stdout.split())
