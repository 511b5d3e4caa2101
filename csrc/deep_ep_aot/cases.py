"""DeepInfer's calls into DeepEP, with its argument forms: one function an operation (csrc/aot/worker.py).

This process is rank 0 of a group whose other ranks do not exist: torch's fake process group gathers its own objects,
the simulated NCCL its own memory (csrc/simdevice/nccl.cpp). No kernel depends on the rank; all depend on the number of
ranks and on how many of them share an NVLink domain. Values do not matter, since nothing is computed.
"""

import contextlib
import os
import tempfile
import tomllib
from functools import partial
from pathlib import Path

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


def _topologies(model):
    """Numbers of ranks: the expert-parallel group, and the smallest one that does not fit into an NVLink domain.

    DeepInfer calls EPBuffer for groups beyond a domain; within one it takes DeepGEMM's mega MoE.
    """
    return sorted({model.expert_parallel_size, max(model.expert_parallel_size, 2 * model.nvlink_domain_size)})


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
    import torch

    packs = model.hidden_size // model.fp8_granularity // 4
    padded = (tokens + 3) // 4 * 4
    return buffer.dispatch(
        x=(
            torch.empty(tokens, model.hidden_size, device="cuda", dtype=torch.float8_e4m3fn),
            torch.empty(packs, padded, device="cuda", dtype=torch.int32).mT[:tokens],
        ),
        num_sms=sms,
        topk_idx=torch.empty(tokens, model.num_experts_per_tok, device="cuda", dtype=torch.int64),
        topk_weights=torch.empty(tokens, model.num_experts_per_tok, device="cuda"),
        cumulative_local_expert_recv_stats=torch.empty(
            model.n_routed_experts // buffer.num_ranks, device="cuda", dtype=torch.int32
        ),
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
    import torch

    hidden = torch.empty(received, model.hidden_size, device="cuda", dtype=torch.bfloat16)
    return buffer.combine(
        x=hidden,
        handle=handle,
        num_sms=sms,
        bias=torch.empty(tokens, model.hidden_size, device="cuda", dtype=torch.bfloat16),
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

    for ranks in _topologies(model):
        for phase in model.phases():
            max_tokens = max(model.tokens(phase))
            for sync in (False,) if phase == "decode" else (False, True):
                shape = {"ranks": ranks, "phase": phase, "max_tokens": max_tokens, "cpu_sync": sync}
                yield shape, partial(call, ranks, max_tokens, max_tokens, sync)
