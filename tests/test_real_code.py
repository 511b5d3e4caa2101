"""Our readers against cuobjdump and nvdisasm on real code: every figure of every kernel, every compression mode."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from archwright.elf import SECTION_NOBITS, Elf
from archwright.environment import Environment, create_environment
from archwright.fatbin import Kind, read_fatbin
from archwright.kernels import DeviceCode, cubin_payloads, read_device_code
from archwright.ptxas import read_report
from archwright.sass import count_instructions
from archwright.targets import target_table

pytestmark = pytest.mark.wheels

SOURCE = """\
__constant__ float table[256];
template <int N> __global__ void __launch_bounds__(N) run(float *p, int n) {
    extern __shared__ float dynamic[];
    __shared__ float fixed[64];
    fixed[threadIdx.x & 63] = p[threadIdx.x] + table[n & 255];
    __syncthreads();
    float a[32];
    for (int i = 0; i < 32; i++) a[(i * n) & 31] = p[i];
    float sum = 0;
    for (int i = 0; i < n; i++) sum += a[(i + n) & 31] + fixed[i & 63] + dynamic[i];
    p[n] = sum;
}
__global__ void spill(float *p, const float *q, int n) {
    float a[300];
#pragma unroll
    for (int i = 0; i < 300; i++) a[i] = q[i * n];
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 300; j++) p[j * n] = a[j] * a[(j * 7) % 300];
}
void go(float *p) {
    run<64><<<1, 64>>>(p, 3);
    run<256><<<1, 256, 1024>>>(p, 3);
    spill<<<1, 1>>>(p, p, 3);
}
"""
#: Case H1: ptxas ignores setmaxnreg where it does not know how many registers a kernel starts with.
REGISTERS = """\
__global__ void BOUNDS moves(float *p, int n) {
    if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    p[threadIdx.x] = n;
}
__global__ void other(float *p) { p[0] = 1; }
"""
A100 = ("-gencode", "arch=compute_100a,code=sm_100a")
FORMS = {
    "default": A100,
    "two arches and PTX": (*A100, "-gencode", "arch=compute_103a,code=[sm_103a,compute_103a]"),
    "family": ("-gencode", "arch=compute_100f,code=[sm_100f,compute_100f]"),
    "plain": ("-gencode", "arch=compute_100,code=sm_100"),
    "Hopper": ("-gencode", "arch=compute_90a,code=sm_90a"),
    "none": ("-gencode", "arch=compute_100a,code=[sm_100a,compute_100a]", "--compress-mode=none"),
    "speed": ("-gencode", "arch=compute_100a,code=[sm_100a,compute_100a]", "--compress-mode=speed"),
    "size": ("-gencode", "arch=compute_100a,code=[sm_100a,compute_100a]", "--compress-mode=size"),
    "balance": ("-gencode", "arch=compute_100a,code=[sm_100a,compute_100a]", "--compress-mode=balance"),
    "relocatable": ("-gencode", "arch=compute_100a,code=[sm_100a,compute_100a]", "-rdc=true"),
}


@pytest.fixture(scope="module")
def cuda() -> Environment:
    return create_environment(target_table().targets["sm100"])


Made = tuple[Path, str, DeviceCode]


@pytest.fixture(scope="module")
def make(cuda: Environment, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    """Compile SOURCE into a library: its path, what the compiler said, and what we read in it."""

    @functools.cache
    def build(*flags: str, source: str = SOURCE) -> Made:
        folder = tmp_path_factory.mktemp("code")
        (folder / "k.cu").write_text(source)
        command = [cuda.toolkit / "bin" / "nvcc", "-ccbin", cuda.cxx, "-shared", "-cudart", "shared", "-O3"]
        command += ["-Xcompiler", "-fPIC,-fno-use-linker-plugin", f"-L{cuda.toolkit / 'lib64'}", "-Xptxas", "-v"]
        run = subprocess.run(
            [*map(str, command), *flags, "k.cu", "-o", "k.so"], cwd=folder, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        library = folder / "k.so"
        return library, run.stdout + run.stderr, read_device_code({"k.so": library.read_bytes()})

    return build


def cuobjdump(cuda: Environment, *words: str | Path, check: bool = True) -> str:
    command = [cuda.toolkit / "bin" / "cuobjdump", *words]
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=check).stdout


Figures = tuple[str, str, int, int, int, int, dict[int, int]]


def told(cuda: Environment, library: Path) -> list[Figures]:
    """(kernel, arch, registers, stack, shared, local, constants) as `cuobjdump -res-usage` prints them."""
    found: list[Figures] = []
    arch = name = ""
    for line in cuobjdump(cuda, "-res-usage", library).splitlines():
        if match := re.match(r"arch = (sm_\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function (\S+):$", line):
            name = match[1]
        elif "REG:" in line:
            values = {key: int(value) for key, value in re.findall(r"(\w+(?:\[\d+\])?):(\d+)", line)}
            constants = {int(k[9:-1]): v for k, v in values.items() if k.startswith("CONSTANT[") and v}
            found.append((name, arch, values["REG"], values["STACK"], values["SHARED"], values["LOCAL"], constants))
    return sorted(found, key=lambda figures: figures[:2])


def ours(code: DeviceCode, *, relocatable: bool = False) -> list[Figures]:
    found = []
    for _, section, cubin, _, _ in code.cubins:
        if (section == "__nv_relfatbin") is relocatable:
            for k in cubin.kernels:
                found.append((k.name, cubin.arch, k.registers, k.stack, k.shared, k.local, k.constants))
    return sorted(found, key=lambda figures: figures[:2])


@pytest.mark.parametrize("flags", FORMS.values(), ids=FORMS)
def test_every_figure_is_cuobjdumps(flags: tuple[str, ...], make: Callable[..., Made], cuda: Environment) -> None:
    library, _, code = make(*flags)

    theirs = told(cuda, library)
    assert len(theirs) >= 3
    mine = [(*figures[:6], {b: n for b, n in figures[6].items() if n}) for figures in ours(code)]
    # a device link leaves functions of its own in cuobjdump's list, and module-wide constants in every kernel's
    for kernel in mine:
        (match,) = [other for other in theirs if other[:2] == kernel[:2]]
        assert kernel[:6] == match[:6]
        assert kernel[6].items() <= match[6].items()
    assert {kernel[:2] for kernel in mine} == {other[:2] for other in theirs if other[0].startswith("_Z")}


@pytest.mark.parametrize("flags", FORMS.values(), ids=FORMS)
def test_the_same_cubins_and_ptx_are_found(
    flags: tuple[str, ...], make: Callable[..., Made], cuda: Environment
) -> None:
    library, _, code = make(*flags)

    listed = re.findall(r"\.(sm_\w+)\.cubin", cuobjdump(cuda, "-lelf", library))
    # in this list cuobjdump leaves the f of a family away
    plain = [cubin.arch.rstrip("f") for _, section, cubin, _, _ in code.cubins if section != "__nv_relfatbin"]
    assert sorted(plain) == sorted(listed) or "-rdc=true" in flags
    assert bool(code.ptx) is ("compute_" in "".join(flag.partition("code=")[2] for flag in flags))
    if "-rdc=true" not in flags:  # of relocatable code it lists none
        ptx = re.findall(r"\.(sm_\w+)\.ptx", cuobjdump(cuda, "-lptx", library, check=False))
        assert sorted(found.arch for found in code.ptx) == sorted(ptx)


@pytest.mark.parametrize(
    ("mode", "cubins", "ptx"),
    [
        ("default", "", "zstd"),
        ("none", "", ""),
        ("speed", "", "lz4"),
        ("balance", "", "zstd"),
        ("size", "zstd", "zstd"),
    ],
)
def test_what_each_compression_mode_compresses(mode: str, cubins: str, ptx: str, make: Callable[..., Made]) -> None:
    flags = FORMS["two arches and PTX"] if mode == "default" else FORMS[mode]
    library, _, code = make(*flags)

    file = Elf(library.read_bytes())
    section = file.find(".nv_fatbin")
    assert section is not None
    entries = list(read_fatbin(file.bytes_of(section)))
    assert {entry.compression for entry in entries if entry.kind is Kind.CUBIN} == {cubins}
    assert {entry.compression for entry in entries if entry.kind is Kind.PTX} == {ptx}
    assert {compression for *_, compression in code.cubins} == {cubins}


@pytest.mark.parametrize("form", ["size", "two arches and PTX", "Hopper", "relocatable"])
def test_cubins_and_libraries_read_as_pyelftools_reads_them(form: str, make: Callable[..., Made]) -> None:
    library, _, _ = make(*FORMS[form])
    members = {"k.so": library.read_bytes()}
    cubins = [bytes(payload) for payload in cubin_payloads(members)]
    assert cubins
    for data in (members["k.so"], *cubins):
        mine, reference = Elf(data), ELFFile(BytesIO(data))
        assert len(mine.sections) == reference.num_sections() > 5
        for section, other in zip(mine.sections, reference.iter_sections(), strict=True):
            header = (section.name, section.offset, section.size, section.link, section.info, section.flags)
            fields = ("sh_offset", "sh_size", "sh_link", "sh_info", "sh_flags")
            assert header == (other.name, *(other[field] for field in fields))
            if section.type not in (0, SECTION_NOBITS):
                assert bytes(mine.bytes_of(section)) == other.data()
    for data in cubins:
        table = ELFFile(BytesIO(data)).get_section_by_name(".symtab")
        assert [(s.name, s.kind == 2, s.value, s.size) for s in Elf(data).symbols()] == [
            (s.name, s["st_info"]["type"] == "STT_FUNC", s["st_value"], s["st_size"]) for s in table.iter_symbols()
        ]


@pytest.mark.parametrize("flags", [FORMS["default"], FORMS["two arches and PTX"]])
def test_the_compilers_report_belongs_to_the_cubins(flags: tuple[str, ...], make: Callable[..., Made]) -> None:
    _, said, code = make(*flags, "-maxrregcount=64")
    full = code.with_reports({report.key: report for report in read_report(said)})

    assert all(kernel.spill_stores is not None for kernel in full.kernels)
    assert {k.name for k in full.kernels if k.spill_stores} == {"_Z5spillPfPKfi"}


def test_both_disassemblers_count_the_same(make: Callable[..., Made], cuda: Environment, tmp_path: Path) -> None:
    library, _, code = make(*FORMS["size"])
    members = {"k.so": library.read_bytes()}
    counted = [
        count_instructions(code, members, cuda.toolkit / "bin" / tool, tmp_path / f"{tool}.json").kernels
        for tool in ("nvdisasm", "cuobjdump")
    ]
    assert counted[0] == counted[1]
    assert any((kernel.instructions or {}).get("local memory") for kernel in counted[0])


@pytest.mark.parametrize(("bounds", "kept"), [("", False), ("__launch_bounds__(256, 1)", True)])
def test_h1_setmaxnreg_that_ptxas_ignores_is_told(
    bounds: str, kept: bool, make: Callable[..., Made], cuda: Environment
) -> None:
    flags = (*A100, "-gencode", "arch=compute_103a,code=sm_103a")
    library, said, code = make(*flags, source=REGISTERS.replace("BOUNDS", bounds))
    code = code.with_reports({report.key: report for report in read_report(said)})
    code = count_instructions(code, {"k.so": library.read_bytes()}, cuda.toolkit / "bin" / "nvdisasm")

    mine = [kernel for kernel in code.kernels if kernel.name == "_Z5movesPfi"]
    assert {kernel.arch for kernel in mine} == {"sm_100a", "sm_103a"}
    for kernel in mine:
        assert bool(kernel.losses) is not kept
        assert (kernel.instructions or {}).get("setmaxnreg", 0) == (2 if kept else 0)
    assert all("'setmaxnreg' ignored" in loss for kernel in mine for loss in kernel.losses)
