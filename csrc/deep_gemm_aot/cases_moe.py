"""DeepGEMM's mixture of experts as DeepInfer calls it (model_executor/models/v4_modules/mlp.py)."""

import functools
import types

from case_tensors import MX_GROUP, fp4, fp8, padded, prepare
from casekit import empty, float32, int32


def _local_experts(model):
    return model.n_routed_experts // model.expert_parallel_size


def _grouped_cases(model, call):
    """The two matrices of the routed experts. m is the tokens that a device gets on average, each expert padded."""
    experts = _local_experts(model)
    sizes = ((2 * model.moe_intermediate_size, model.hidden_size), (model.hidden_size, model.moe_intermediate_size))
    for n, k in sizes:
        for tokens in model.tokens():
            shape = {"tokens": tokens, "n": n, "k": k, "groups": experts}
            yield shape, functools.partial(call, tokens * model.num_experts_per_tok, n, k)


def _rows(deep_gemm, rows, experts):
    alignment = deep_gemm.get_mk_alignment_for_contiguous_layout()
    return padded(rows, alignment) + experts * alignment


def m_grouped_fp8_fp4_gemm_nt_contiguous(model):
    """_grouped_gemm with fp8 activations: fp4 experts (mxfp4 checkpoints) and fp8 ones."""
    experts, gran = _local_experts(model), model.fp8_granularity

    def call(rows, n, k, weight):
        deep_gemm = prepare()
        m = _rows(deep_gemm, rows, experts)
        deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(
            fp8(m, k, gran),
            fp4(n, k, experts) if weight == "fp4" else fp8(n, k, gran, experts),
            empty(m, n),
            int32(experts),
            recipe_a=(1, gran),
            recipe_b=(1, MX_GROUP if weight == "fp4" else gran),
            use_psum_layout=True,
            expected_m_for_psum_layout=None,
        )

    for weight in ("fp4", "fp8"):
        for shape, case in _grouped_cases(model, functools.partial(call, weight=weight)):
            yield shape | {"weight": weight}, case


def m_grouped_bf16_gemm_nt_contiguous(model):
    """_grouped_gemm with bf16 activations and experts."""
    experts = _local_experts(model)

    def call(rows, n, k):
        deep_gemm = prepare()
        m = _rows(deep_gemm, rows, experts)
        deep_gemm.m_grouped_bf16_gemm_nt_contiguous(
            *(empty(m, k), empty(experts, n, k), empty(m, n), int32(experts)),
            use_psum_layout=True,
            expected_m_for_psum_layout=None,
        )

    yield from _grouped_cases(model, call)


def bf16_mega_gate(model):
    """DeepseekMoE.gate_forward: with and without images, no replicas of experts."""
    experts, topk = model.n_routed_experts, model.num_experts_per_tok

    def call(m, images):
        prepare().bf16_mega_gate(
            empty(m, model.hidden_size),
            empty(experts, model.hidden_size),
            num_topk=topk,
            use_shared_as_routed=False,
            num_shared_experts=0,
            routed_scaling_factor=1.5,
            ep_rank=0,
            mask=empty(m, dtype="bool"),
            bias=float32(experts),
            image_bias=float32(experts) if images else None,
            image_token_mask=empty(m, dtype="bool") if images else None,
            force_random=empty(m, dtype="bool"),
            to_physical_map=int32(experts, 1),
            logical_count=int32(experts),
            scoring_func="sqrtsoftplus",
            out=(empty(m, topk, dtype="int64"), float32(m, topk)),
        )

    for images in (False, True):
        for m in model.tokens():
            yield {"m": m, "experts": experts, "topk": topk, "images": images}, functools.partial(call, m, images)


def transform_weights_for_mega_moe(model):
    """_convert_mega_moe_weight: torch's own operations only, no kernel of DeepGEMM."""
    for kind in ("fp8xfp4", "fp8xfp8", "bf16xbf16"):
        yield {"mma_type": kind}, functools.partial(_weights, model, kind, _local_experts(model))


def _weights(model, kind, experts, shared=False):
    """Weights of the experts after transform_weights_for_mega_moe; a shared expert has no dimension of groups."""
    groups = () if shared else (experts,)
    width = model.moe_intermediate_size * (model.n_shared_experts if shared else 1)

    def matrix(n, k):
        if kind == "bf16xbf16":
            return empty(*groups, n, k)
        if kind == "fp8xfp4" and not shared:
            return fp4(n, k, *groups)
        return fp8(n, k, MX_GROUP, *groups)

    l1, l2 = matrix(2 * width, model.hidden_size), matrix(model.hidden_size, width)
    l1, l2 = prepare().transform_weights_for_mega_moe(l1, l2)
    if kind == "bf16xbf16":
        return l1.clone(), l2.clone()
    return tuple((values.clone(), sf.clone()) for values, sf in (l1, l2))


def _group(ranks):
    """A process group of `ranks`, of which this process is the first: what SymmBuffer asks of one."""
    return types.SimpleNamespace(size=lambda: ranks, rank=lambda: 0, barrier=lambda: None)


@functools.cache
def _buffer_of(ranks, *arguments):
    """deep_gemm.SymmBuffer as userbuffer.py makes it for `ranks`.

    With more than one rank, torch's rendezvous needs the other processes. Upstream's own way around is a buffer made
    on a `base`: ours is plain memory of the size that upstream asks for, once for each rank's address.
    """
    import torch
    from deep_gemm import _C, SymmBuffer

    group = _group(ranks)
    experts, tokens, topk, hidden, width, shared, kind = arguments
    tokens = padded(tokens, _C.get_token_alignment_for_mega_moe())
    size, _ = _C.get_symm_buffer_size_for_mega_moe(
        *(ranks, experts, tokens, topk, hidden, width, kind, "swiglu", shared)
    )
    memory = torch.empty(size, dtype=torch.int8, device="cuda")
    handle = types.SimpleNamespace(buffer_ptrs=[memory.data_ptr()] * ranks)
    base = types.SimpleNamespace(buffer=memory, handle=handle, group=group)
    return SymmBuffer(
        *(group, experts, tokens, topk, hidden, width, shared), mma_type=kind, activation="swiglu", base=base
    )


def _mega_moe(model, function, kind, tokens, largest):
    deep_gemm = prepare()
    experts, shared = model.n_routed_experts, model.n_shared_experts
    buffer = _buffer_of(
        *(model.expert_parallel_size, experts, largest, model.num_experts_per_tok),
        *(model.hidden_size, model.moe_intermediate_size, shared, kind),
    )
    l1, l2 = _cached_weights(_Key(model), kind, _local_experts(model))
    extra = {}
    if shared:
        shared_l1, shared_l2 = _cached_weights(_Key(model), kind, 1, shared=True)
        extra = {"shared_l1_weights": shared_l1, "shared_l2_weights": shared_l2}
    getattr(deep_gemm, function)(
        *(empty(tokens, model.hidden_size), l1, l2, buffer),
        **extra,
        cumulative_local_expert_recv_stats=int32(_local_experts(model)),
        activation="swiglu",
        activation_clamp=10.0,
        fast_math=True,
    )


class _Key:
    """A model as a key of a cache: one process has one."""

    def __init__(self, model):
        self.model = model

    def __eq__(self, other):
        return self.model is other.model

    def __hash__(self):
        return id(self.model)


@functools.cache
def _cached_weights(key, kind, experts, shared=False):
    return _weights(key.model, kind, experts, shared)


def _mega_cases(model, function, kinds):
    """A node for decoding has a buffer of its largest batch, one for prefill of its largest chunk (max_num_tokens)."""
    for kind in kinds:
        for phase in ("decode", "prefill"):
            largest = max(model.tokens(phase))
            for tokens in model.tokens(phase):
                shape = {"tokens": tokens, "phase": phase, "mma_type": kind, "ranks": model.expert_parallel_size}
                yield shape, functools.partial(_mega_moe, model, function, kind, tokens, largest)


def fp8_fp4_mega_moe(model):
    """DeepseekMoE.mega_moe_forward with fp8 activations, shared expert fused: fp4 experts and fp8 ones."""
    yield from _mega_cases(model, "fp8_fp4_mega_moe", ("fp8xfp4", "fp8xfp8"))


def bf16_mega_moe(model):
    """DeepseekMoE.mega_moe_forward with bf16 activations and experts."""
    yield from _mega_cases(model, "bf16_mega_moe", ("bf16xbf16",))
