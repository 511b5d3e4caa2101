"""The platform tag: our quick look into auditwheel's table agrees with auditwheel."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from archwright.abi import newest, read_abi, smallest_policy
from archwright.elf import Elf

PROCESSOR = "x86_64"


@pytest.mark.parametrize(
    ("flags", "source"),
    [
        ((), "int f(void) { return 1; }"),
        ((), '#include <stdio.h>\nint f(void) { return puts("x"); }'),
        (("-pthread",), "#include <pthread.h>\nint f(pthread_t t) { return pthread_join(t, 0); }"),
        (("-lm",), "#include <math.h>\ndouble f(double x) { return pow(x, exp(x)); }"),
        (
            (),
            "#include <sys/random.h>\nint f(void *p) { return (int)getrandom(p, 1, 0); }",
        ),
    ],
)
def test_it_agrees_with_auditwheel(flags: tuple[str, ...], source: str, gcc: str, tmp_path: Path) -> None:
    module = tmp_path / "m.so"
    subprocess.run([gcc, "-shared", "-fPIC", "-x", "c", "-", "-o", module, *flags], input=source, text=True, check=True)
    wheel = tmp_path / "m-1.0-cp312-cp312-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(module, "m/_m.cpython-312-x86_64-linux-gnu.so")
        archive.writestr("m-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
        archive.writestr("m-1.0.dist-info/METADATA", "Name: m\nVersion: 1.0\n")
        archive.writestr("m-1.0.dist-info/RECORD", "m/_m.cpython-312-x86_64-linux-gnu.so,,\n")

    dynamic = Elf(module.read_bytes()).dynamic()
    abi = read_abi(wheel)
    assert smallest_policy(dynamic.needed, dynamic.versions, PROCESSOR) == abi.platform
    assert newest(dynamic.versions) == abi.needs


@pytest.mark.parametrize(
    ("needed", "versions", "platform"),
    [
        (("libc.so.6",), ("GLIBC_2.2.5",), "manylinux_2_5"),
        (("libc.so.6",), ("GLIBC_2.34", "GLIBC_2.2.5"), "manylinux_2_34"),
        (("libc.so.6", "libstdc++.so.6"), ("GLIBC_2.17", "GLIBCXX_3.4.30"), "manylinux_2_35"),
        (("libc.so.6",), ("GLIBC_2.99",), "linux"),
        (("libc.so.6",), ("GLIBC_PRIVATE",), "linux"),
        (("libstray.so.1",), (), "linux"),
        (("libcudart.so.13", "libtorch_cpu.so", "libnccl.so.2"), ("libcudart.so.13",), "manylinux_2_5"),
        (("libcudart.so.12",), (), "linux"),
    ],
)
def test_the_oldest_system_that_has_everything(
    needed: tuple[str, ...], versions: tuple[str, ...], platform: str
) -> None:
    assert smallest_policy(needed, versions, PROCESSOR) == f"{platform}_{PROCESSOR}"


def test_versions_are_compared_as_numbers() -> None:
    versions = ("GLIBC_2.9", "GLIBC_2.34", "GLIBC_PRIVATE", "GLIBCXX_3.4.9", "GLIBCXX_3.4.29", "CXXABI_1.3.9", "FOO_9")
    assert newest(versions) == {"CXXABI": "1.3.9", "GLIBC": "2.34", "GLIBCXX": "3.4.29"}
