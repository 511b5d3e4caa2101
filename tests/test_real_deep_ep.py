"""The simulated NCCL, and a real AOT pack of DeepEP used without any compiler."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from archwright.components import components
from archwright.environment import Environment, create_environment
from archwright.shapes import load_shapes
from archwright.simulate import build_stand_ins, simulation
from archwright.targets import target_table

from .alone import Used, run_alone

pytestmark = pytest.mark.wheels

ROOT = Path(__file__).parent.parent
EVERY_CASE = Path(__file__).with_name("every_case.py")
RANKS, DOMAIN, TOKENS, SMS = 16, 8, 128, 24
SHAPES = {"hidden_size": 4096, "n_routed_experts": 32, "num_experts_per_tok": 4, "fp8_granularity": 32}
SHAPES |= {
    "expert_parallel_size": RANKS,
    "context_parallel_size": RANKS,
    "nvlink_domain_size": DOMAIN,
    "userbuffer_comm_sms": SMS,
}
SHAPES |= {"engram_layers": 1, "engram_vocab_size": 500, "engram_max_ngram_size": 2, "engram_n_heads": 2}
SHAPES |= {"engram_head_dim": 256}
#: Of the first two primes from 500 on, for 16 ranks, padded to 256.
ROWS = (503 + 509 + 255) // 256 * 256

#: What an engine does, with a group of `ranks`; nothing of the pack's own cases.
CALL = f"""
import sys, torch, torch.distributed as dist, deep_ep
from torch.testing._internal.distributed.fake_pg import FakeStore
ranks, m = int(sys.argv[1]), {TOKENS}
dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
buffer = deep_ep.EPBuffer(dist.new_group(list(range(ranks))), num_max_tokens_per_rank=m, hidden=4096, num_topk=4,
                          use_fp8_dispatch=True, explicitly_destroy=True)
def empty(*shape, dtype=torch.float32):
    return torch.empty(*shape, device="cuda", dtype=dtype)
x = empty(m, 4096, dtype=torch.float8_e4m3fn), empty(32, m, dtype=torch.int32).mT
overlap = buffer.dispatch(
    x, empty(m, 4, dtype=torch.int64), empty(m, 4), empty(32 // ranks, dtype=torch.int32), num_experts=32,
    num_max_tokens_per_rank=m, expert_alignment=256, num_sms={SMS}, async_with_compute_stream=True, do_cpu_sync=False,
    do_expand=True, use_tma_aligned_col_major_sf=True, defer_epilogue=True)
received, _, _, handle = overlap.current_stream_wait()
y = empty(received[0].shape[0], 4096, dtype=torch.bfloat16)
buffer.combine(y, handle, bias=empty(m, 4096, dtype=torch.bfloat16), num_sms={SMS}, async_with_compute_stream=True,
               allocate_on_comm_stream=True, previous_event=buffer.capture(), defer_epilogue=True).current_stream_wait()
buffer.destroy()
group, rows = dist.new_group(list(range(ranks))), {ROWS}
table = [rows // ranks], 256, m, 2, torch.float8_e4m3fn, 2
gpu, storage = deep_ep.EngramBuffer.get_storage_size_hint(group, *table)
qps, depth, restrict = deep_ep.EngramBuffer.get_theoretical_config(group, 1, m, 2)
engram = deep_ep.EngramBuffer(group, gpu, storage, True, qps, depth, restrict, explicitly_destroy=True)
engram.set_config(*table)
engram.write([empty(rows // ranks, 256, dtype=torch.float8_e4m3fn)], sfs=[empty(rows, 2, dtype=torch.int32)])
for wait in engram.fetch(empty(1, m, 2, dtype=torch.int32)):
    wait()
engram.destroy()
print("hits")
"""


@pytest.fixture(scope="session")
def environment() -> Environment:
    return create_environment(target_table().targets["sm100"])


@pytest.fixture(scope="session")
def site(environment: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DeepEP and its pack for a small shape file, installed into a folder."""
    folder = tmp_path_factory.mktemp("packs")
    shapes = folder / "small.toml"
    lines = [f"{name} = {{ value = {value}, source = 'this test' }}" for name, value in SHAPES.items()]
    tokens = f"[tokens]\ndecode = [1, {TOKENS}]\n"
    shapes.write_text("\n".join(['schema = 1\nmodel = "small"\n[dimensions]', *lines, tokens]))
    command = ["archwright", "aot", "sm100", "deep_ep_aot", "--shapes", str(shapes), "--out", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    library = next((ROOT / "dist" / "sm100").glob("deepinfer_ep-*.whl"))
    wheels = [found["wheels"][0]["path"], str(library)]
    pip = [str(environment.toolchain / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(folder / "site"), *wheels], check=True)
    return folder / "site"


def use(
    environment: Environment, site: Path, tmp_path: Path, ranks: int = RANKS, domain: int = DOMAIN, **more: str
) -> Used:
    """Call DeepEP with nothing on PATH and the pack alone; status, output and every program that was started."""
    (tmp_path / "use.py").write_text(CALL)
    return start(environment, site, tmp_path, str(tmp_path / "use.py"), str(ranks), domain=domain, **more)


def start(environment: Environment, site: Path, tmp_path: Path, *words: str, domain: int = DOMAIN, **more: str) -> Used:
    """Run Python as one rank of a group, with nothing on PATH and the pack alone."""
    more = {"EP_SUPPRESS_NCCL_CHECK": "1", "ARCHWRIGHT_SIMULATED_NVLINK_DOMAIN": str(domain)} | more
    return run_alone(environment, site, tmp_path, *words, nccl=True, **more)


def test_e1_with_the_pack_no_compiler_process_is_started(environment: Environment, site: Path, tmp_path: Path) -> None:
    status, said, started = use(environment, site, tmp_path)

    assert (status, said.splitlines()[-1]) == (0, "hits"), said
    stand_in = str(site / "archwright_aot_deep_ep" / "toolkit" / "bin" / "nvcc")
    assert [name for name in started if name.endswith("nvcc")] == [stand_in]  # asked for its version, once
    assert {Path(name).name for name in started} <= {"python", "sh", "ldconfig", "nvcc"}
    assert not list((tmp_path / "home" / ".dj").glob("cache/*"))


def test_e1_every_case_of_the_recipe_is_a_hit(environment: Environment, site: Path, tmp_path: Path) -> None:
    pack = components()["deep_ep_aot"].pack
    assert pack is not None
    operations = [operation.name for operation in pack.operations]
    facts = {"component": "deep_ep_aot", "cases": pack.cases[0], "operations": operations}
    (tmp_path / "facts.json").write_text(json.dumps(facts | load_shapes(str(site.parent / "small.toml")).as_dict()))

    status, said, started = start(
        environment, site, tmp_path, str(EVERY_CASE), str(ROOT / "csrc"), str(tmp_path / "facts.json")
    )

    manifest = json.loads((site / "archwright_aot_deep_ep" / "manifest.json").read_text())
    cases = sum(len(operation["cases"]) for operation in manifest["operations"])
    assert (status, said.splitlines()[-1]) == (0, f"{cases} cases"), said
    assert {Path(name).name for name in started} <= {"python", "sh", "ldconfig", "nvcc", "nvidia-smi", "ibstat"}
    assert len([name for name in started if name.endswith("nvcc")]) == 1


@pytest.mark.parametrize(("ranks", "domain"), [(8, 8), (16, 4)])
def test_e1_another_group_is_a_miss_by_name(
    environment: Environment, site: Path, tmp_path: Path, ranks: int, domain: int
) -> None:
    status, said, _ = use(environment, site, tmp_path, ranks, domain)

    assert status != 0
    assert "hits" not in said
    assert "AW607: kernel is not in the AOT pack" in said
    assert "archwright aot sm100 deep_ep_aot" in said


def test_no_digest_depends_on_where_nccl_lies(environment: Environment, site: Path, tmp_path: Path) -> None:
    """Upstream's own digests have the path of NCCL's headers: patch 0002."""
    root = tmp_path / "elsewhere"
    shutil.copytree(environment.nccl_root, root)

    status, said, _ = use(environment, site, tmp_path, EP_NCCL_ROOT_DIR=str(root))

    assert (status, said.splitlines()[-1]) == (0, "hits"), said


def test_another_nccl_has_other_digests(environment: Environment, site: Path, tmp_path: Path) -> None:
    root = tmp_path / "elsewhere"
    shutil.copytree(environment.nccl_root, root)
    header = root / "include" / "nccl.h"
    header.write_text(header.read_text().replace("#define NCCL_MINOR", "#define NCCL_MINOR 9//"))

    status, said, _ = use(environment, site, tmp_path, EP_NCCL_ROOT_DIR=str(root))

    assert status != 0
    assert "AW607" in said


NCCL = """
import ctypes
nccl = ctypes.CDLL("libnccl.so.2")
"""


def nccl(environment: Environment, tmp_path: Path, code: str, domain: str = "8") -> tuple[int, str]:
    """Run `code` with the simulated NCCL; status and what it printed or complained."""
    (tmp_path / "s.py").write_text(NCCL + code)
    variables = {"ARCHWRIGHT_SIMULATED_NVLINK_DOMAIN": domain} | simulation("b200", environment, nccl=True)
    command = [str(environment.runtime / "bin" / "python"), str(tmp_path / "s.py")]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("ranks", "domain", "team"), [(16, "8", 8), (4, "8", 4), (72, "72", 72), (8, "2", 2)])
def test_the_ranks_of_a_domain_are_what_was_said(
    environment: Environment, tmp_path: Path, ranks: int, domain: str, team: int
) -> None:
    code = f"""
class Team(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("ranks", "rank", "stride")]
class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]
nccl.ncclTeamLsa.restype = nccl.ncclTeamWorld.restype = Team
nccl.ncclTeamLsa.argtypes = nccl.ncclTeamWorld.argtypes = [ctypes.c_void_p]
group = ctypes.c_void_p()
assert nccl.ncclCommInitRank(ctypes.byref(group), {ranks}, Id(), 1) == 0
assert nccl.ncclCommInitRank(ctypes.byref(ctypes.c_void_p()), 2, Id(), 2) != 0
print(nccl.ncclTeamWorld(group).ranks, nccl.ncclTeamLsa(group).ranks, nccl.ncclTeamLsa(group).rank)
"""
    assert nccl(environment, tmp_path, code, domain) == (0, f"{ranks} {team} 1\n")


@pytest.mark.parametrize("name", ["ncclSend", "ncclAllReduce", "pncclBcast"])
def test_what_is_outside_the_scope_ends_the_process_by_name(
    environment: Environment, tmp_path: Path, name: str
) -> None:
    status, said = nccl(environment, tmp_path, f"nccl.{name}()")
    assert status < 0
    assert "AW704" in said
    assert name in said


def test_every_function_of_the_locked_nccl_is_there(environment: Environment) -> None:
    real = {name for name in _functions(environment.nccl_root / "lib" / "libnccl.so.2") if "nccl" in name}
    assert real
    assert real - set(_functions(build_stand_ins(environment) / "libnccl.so.2")) == set()


def _functions(library: Path) -> list[str]:
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    return [line.split()[-1] for line in done.stdout.splitlines()]
