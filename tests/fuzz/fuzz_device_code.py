"""Coverage-guided fuzzing of the readers: ELF, cubins, containers, PTX and whole wheels (`nox -s fuzz`).

    python tests/fuzz/fuzz_device_code.py -max_total_time=60

Anything but a result, `Damaged` or AW419/AW420 is a crash; so is more than a second or 2 GiB for one input.
"""

from __future__ import annotations

import io
import sys
import tempfile
import zipfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["archwright"]):
    from archwright.demangle import short_name, stable_name
    from archwright.elf import Damaged
    from archwright.errors import ArchwrightError
    from archwright.kernels import cubin_payloads, read_device_code
    from archwright.wheelfile import check_record, read_wheel

sys.path.insert(0, str(Path(__file__).parent))
from builders import everything

SCRATCH = Path(tempfile.mkdtemp()) / "tiny-1.0-cp312-cp312-linux_x86_64.whl"


def one_input(data: bytes) -> None:
    """The first byte chooses what the rest is taken for."""
    try:
        if data[:1] == b"w":
            SCRATCH.write_bytes(data[1:])
            check_record(read_wheel(SCRATCH, max_bytes=64 << 20))
        else:
            member = "code.ptx" if data[:1] == b"p" else "code.so"
            code = read_device_code({member: data[1:]})
            for kernel in code.kernels:
                assert short_name(stable_name(kernel.name)).isprintable()
            for _ in cubin_payloads({member: data[1:]}):
                pass
    except Damaged:
        pass
    except ArchwrightError as error:
        if error.code not in ("AW419", "AW420"):
            raise


def small_wheel() -> bytes:
    info = "tiny-1.0.dist-info"
    members = {
        "tiny/code.so": everything()["library.so"],
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nTag: cp312-cp312-linux_x86_64\n",
        f"{info}/RECORD": b"tiny/code.so,sha256=AA,3\n",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def main() -> None:
    corpus = Path(tempfile.mkdtemp(prefix="archwright-fuzz-"))
    (corpus / "wheel").write_bytes(b"w" + small_wheel())
    for name, data in everything().items():
        (corpus / name).write_bytes((b"p" if name.endswith(".ptx") else b"e") + data)
    limits = ["-timeout=5", "-rss_limit_mb=2048", "-max_len=65536"]
    atheris.Setup([sys.argv[0], *limits, *sys.argv[1:], str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
