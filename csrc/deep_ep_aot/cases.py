"""DeepInfer's calls into DeepEP, with its argument forms: one function an operation (csrc/aot/worker.py).

This process is rank 0 of a group whose other ranks do not exist: torch's fake process group gathers its own objects,
the simulated NCCL its own memory (csrc/simdevice/nccl.cpp). No kernel depends on the rank; all depend on the number of
ranks and on how many of them share an NVLink domain. Values do not matter, since nothing is computed.
"""

import contextlib
import math
import os
import tempfile
import tomllib
from functools import partial
from pathlib import Path

from casekit import empty, int32

#: The timeout of DeepEP's wait for counts that a kernel writes, in seconds (the default is 300). No kernel has it.
CPU_TIMEOUT = 1


def _group(ranks):
    """The first `ranks` ranks of a world of as many as any operation needs."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", rank=0, world_size=1024, store=FakeStore())
    return dist.new_group(list(range(ranks)))


def _node():
    """Answer what upstream asks `nvidia-smi` and `ibstat`, from nodes.toml."""
    device = os.environ["ARCHWRIGHT_SIMULATED_DEVICE"]
    node = tomllib.loads(Path(__file__).with_name("nodes.toml").read_text())[device]
    links = "".join(f"\t Link {i}: {node['link_gbs']} GB/s\n" for i in range(node["links"]))
    answers = {
        "nvidia-smi": f"GPU 0: {device} (UUID: GPU-0)\n{links}",
        "ibstat": f"CA 'mlx5_0'\n\tCA type: {node['adapter']}\n\tPort 1:\n\t\tRate: {node['adapter_gbits']}\n",
    }
    folder = Path(tempfile.mkdtemp())
    for name, text in answers.items():
        (folder / name).write_text(
            f"#!/bin/sh\nprintf '%s' '{text.replace(chr(39), chr(39) + chr(92) + chr(39) * 2)}'\n"
        )
        (folder / name).chmod(0o755)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"


def _prepare(model):
    """As DeepInfer's worker/runtime_config.py sets it before it loads a model, and the node around the device."""
    os.environ["EP_AVOID_RECORD_STREAM"] = "1"
    os.environ["EP_SUPPRESS_NCCL_CHECK"] = "1"  # the NCCL that is loaded is the simulated one
    os.environ["ARCHWRIGHT_SIMULATED_NVLINK_DOMAIN"] = str(model.nvlink_domain_size)
    _node()


def _groups(model, ranks):
    """Numbers of ranks: those of the group, and of the smallest one that does not fit into an NVLink domain.

    DeepInfer calls EPBuffer for groups beyond a domain; within one it takes DeepGEMM's mega MoE.
    """
    return sorted({ranks, max(ranks, 2 * model.nvlink_domain_size)})


def _buffer(model, ranks, max_tokens):
    """parallel_utils/userbuffer.py, allocate_ep; the number of SMs as there."""
    import deep_ep
    import torch

    buffer = deep_ep.EPBuffer(
        group=_group(ranks),
        num_max_tokens_per_rank=max_tokens,
        hidden=model.hidden_size,
        num_topk=model.num_experts_per_tok,
        use_fp8_dispatch=True,
        allow_hybrid_mode=True,
        allow_multiple_reduction=True,
        num_cpu_timeout_secs=CPU_TIMEOUT,
        explicitly_destroy=True,
    )
    sms = getattr(model, "userbuffer_comm_sms", 0)  # DEEPINFER_USERBUFFER_COMM_SMS
    if sms == 0:
        device_sms = torch.cuda.get_device_properties().multi_processor_count
        wanted = buffer.get_theoretical_num_sms(num_experts=model.n_routed_experts, num_topk=model.num_experts_per_tok)
        sms = min(wanted, device_sms - min(32, device_sms // 4))
    return buffer, sms


def _alignment():
    """deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(), as models/v4_modules/mlp.py asks for it."""
    import torch

    return 256 if torch.cuda.get_device_capability()[0] == 10 else 128


def _dispatch(model, buffer, sms, max_tokens, tokens, sync):
    """models/v4_modules/mlp.py, dispatch: fp8 activations with packed ue8m0 scales, a scale for 32 of them."""
    packs = model.hidden_size // model.fp8_granularity // 4
    padded = (tokens + 3) // 4 * 4
    return buffer.dispatch(
        x=(
            empty(tokens, model.hidden_size, dtype="float8_e4m3fn"),
            int32(packs, padded).mT[:tokens],
        ),
        num_sms=sms,
        topk_idx=empty(tokens, model.num_experts_per_tok, dtype="int64"),
        topk_weights=empty(tokens, model.num_experts_per_tok, dtype="float32"),
        cumulative_local_expert_recv_stats=int32(model.n_routed_experts // buffer.num_ranks),
        num_experts=model.n_routed_experts,
        num_max_tokens_per_rank=max_tokens,
        expert_alignment=_alignment(),
        previous_event=None,
        async_with_compute_stream=True,
        allocate_on_comm_stream=False,
        do_handle_copy=False,
        do_cpu_sync=sync,
        do_expand=True,
        use_tma_aligned_col_major_sf=True,
        defer_epilogue=True,
    )


def _combine(model, buffer, sms, tokens, received, handle):
    """models/v4_modules/mlp.py, combine, with the shared expert's result as bias."""
    hidden = empty(received, model.hidden_size, dtype="bfloat16")
    return buffer.combine(
        x=hidden,
        handle=handle,
        num_sms=sms,
        bias=empty(tokens, model.hidden_size, dtype="bfloat16"),
        previous_event=buffer.capture(),
        async_with_compute_stream=True,
        allocate_on_comm_stream=True,
        defer_epilogue=True,
    )


@contextlib.contextmanager
def _until_the_cpu_waits():
    """The end of a dispatch with CPU synchronisation: its kernel was launched, the counts that it writes never come.

    What follows (the copy of the received tokens) has the same kernel without synchronisation.
    """
    try:
        yield
    except Exception as error:
        if "Dispatch CPU wait" not in str(error):
            raise
    else:
        raise AssertionError("dispatch did not wait for the counts of received tokens")


def ep_buffer(model):
    """A dispatch and a combine for each phase: prefill synchronises with the CPU but in DeepInfer's compact mode."""
    _prepare(model)

    def call(ranks, max_tokens, tokens, sync):
        buffer, sms = _buffer(model, ranks, max_tokens)
        overlap = _dispatch(model, buffer, sms, max_tokens, tokens, sync)
        if sync:
            with _until_the_cpu_waits():
                overlap.current_stream_wait()
        else:
            received, _indices, _weights, handle = overlap.current_stream_wait()
            _combine(model, buffer, sms, tokens, received[0].shape[0], handle).current_stream_wait()
        buffer.destroy()

    for ranks in _groups(model, model.expert_parallel_size):
        for phase in model.phases():
            max_tokens = max(model.tokens(phase))
            for sync in (False,) if phase == "decode" else (False, True):
                shape = {"ranks": ranks, "phase": phase, "max_tokens": max_tokens, "cpu_sync": sync}
                yield shape, partial(call, ranks, max_tokens, max_tokens, sync)


def bucket_buffer(model):
    """parallel_utils/cp.py, CPManager: an all-gather over a context-parallel group, sharded along the tokens.

    Within an NVLink domain it is copies, and the barrier is its only kernel. A group of one has none.
    """
    if getattr(model, "context_parallel_size", 1) == 1:
        yield {"ranks": 1}, lambda: None
        return
    _prepare(model)

    def call(ranks, tokens):
        import deep_ep
        import torch

        _say_yes()
        alignment = deep_ep.get_num_allocation_alignment()
        wanted = ranks * tokens * model.hidden_size * 2 + 8 * deep_ep.get_num_rdma_alignment()
        buffer = deep_ep.BucketBuffer(_group(ranks), -(-wanted // alignment) * alignment, explicitly_destroy=True)
        with buffer.session() as session:
            region = session.allocate((ranks, tokens, model.hidden_size), torch.bfloat16)
            buffer.all_gather(region[0]).wait()
        buffer.destroy()

    for ranks in _groups(model, model.context_parallel_size):
        tokens = max(model.tokens()) // ranks
        yield {"ranks": ranks, "tokens": tokens}, partial(call, ranks, tokens)


def _say_yes():
    """Let memory that nothing was computed into be true.

    BucketBuffer's constructor asks whether all ranks gave its context the same number, and reads the answer of a kernel
    that never ran. Whatever torch allocates next is made of ones; no kernel depends on it.
    """
    import torch

    torch.cuda.empty_cache()
    megabyte = torch.ones(1 << 20, dtype=torch.uint8)
    for full in [empty(1 << 20, dtype="uint8") for _ in range(4)]:
        full.copy_(megabyte)


def engram_buffer(model):
    """parallel_utils/userbuffer.py (allocate_engram) and models/v4_modules/engram.py: fp8 tables, fetched by hashes.

    They are spread over all ranks, of which there are as many as of the expert-parallel group.
    A prefilling engine and one that only decodes have buffers of their own sizes. How far apart ranks are that reach
    each other by their adapters is the network's: every rank, or those of one rail. Few models have such tables.
    """
    if not getattr(model, "engram_layers", 0):
        yield {"engram_layers": 0}, lambda: None
        return
    _prepare(model)

    def call(ranks, stride, max_tokens):
        import deep_ep
        import torch

        os.environ["ARCHWRIGHT_SIMULATED_GIN_STRIDE"] = str(stride)
        group, entries = _group(ranks), [rows // ranks for rows in _engram_rows(model, ranks)]
        heads = (model.engram_max_ngram_size - 1) * model.engram_n_heads
        packs = model.engram_head_dim // 32 // 4
        table = (entries, model.engram_head_dim, max_tokens, heads, torch.float8_e4m3fn, packs)
        gpu_bytes, storage_bytes = deep_ep.EngramBuffer.get_storage_size_hint(group, *table)
        qps, depth, restrict = deep_ep.EngramBuffer.get_theoretical_config(group, len(entries), max_tokens, heads)
        buffer = deep_ep.EngramBuffer(
            group=group,
            num_gpu_bytes=gpu_bytes,
            num_rdma_storage_size=storage_bytes,
            use_cpu_rdma_storage=True,
            num_allocated_qps=qps,
            allow_hybrid_mode=True,
            explicitly_destroy=True,
            qp_depth=depth,
            restrict_rd_atomic=restrict,
        )
        buffer.set_config(*table)
        buffer.write(
            [empty(n, model.engram_head_dim, dtype="float8_e4m3fn") for n in entries],
            sfs=[int32(ranks * n, packs) for n in entries],
        )
        hashes = int32(len(entries), max_tokens, heads)
        for wait in buffer.fetch(hashes, use_tma_aligned_col_major_sf=True):
            wait()
        buffer.destroy()

    for ranks in _groups(model, model.expert_parallel_size):
        for stride in sorted({1, min(ranks, model.nvlink_domain_size)}):
            for phase in model.phases():
                max_tokens = max(model.tokens(phase))
                shape = {"ranks": ranks, "gin_stride": stride, "phase": phase, "max_tokens": max_tokens}
                yield shape, partial(call, ranks, stride, max_tokens)


def _engram_rows(model, ranks):
    """Rows of each layer's table: a prime for each head, no prime twice (models/v4_modules/engram_metadata.py)."""
    from sympy import nextprime

    seen = set()
    for _layer in range(model.engram_layers):
        rows = 0
        for _size in range(2, model.engram_max_ngram_size + 1):
            start = model.engram_vocab_size - 1
            for _head in range(model.engram_n_heads):
                prime = nextprime(start)
                while prime in seen:
                    prime = nextprime(prime)
                seen.add(prime)
                rows += prime
                start = prime
        alignment = math.lcm(256, ranks)
        yield -(-rows // alignment) * alignment
