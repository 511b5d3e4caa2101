"""Entry points of tile-kernels as DeepInfer calls them."""

import functools

from case_tools import one_case, per_tokens
from casekit import boolean, empty, float32, int32
from engine_import import apply_worker_settings

#: v4_modules/vit.py: EMBED_DIM, NUM_HEADS, MLP_RATIO and MULTIPLE_OF of its only vision encoder.
VIT_DIM, VIT_HEADS, VIT_MLP = 1024, 16, 2816

#: layers/linear.py:get_fp8_cast_params
FP8 = {
    "fmt": "e4m3",
    "num_per_channels": 32,
    "round_sf": True,
    "use_packed_ue8m0": True,
    "use_tma_aligned_col_major_sf": True,
}


def _tile_kernels():
    import tile_kernels

    apply_worker_settings()
    return tile_kernels


def per_token_cast(model):
    """Activations in front of an fp8 linear: layers/linear.py:apply_weight_fp8, attn.py:_wv_and_o_proj.

    And experts repacked from fp8 to fp4: mlp.py:process_moe_weight.
    """
    widths = {
        "hidden": model.hidden_size,
        "context": model.num_attention_heads * model.head_dim,
        "o_lora": model.o_groups * model.o_lora_rank,
        "shared_expert": model.n_shared_experts * model.moe_intermediate_size,
        "engram": (model.engram_max_ngram_size - 1) * model.engram_n_heads * model.engram_head_dim,
    }

    def activations(tokens, width):
        _tile_kernels().quant.per_token_cast(empty(tokens, width), **FP8)

    def weights(rows, width):
        x = empty(rows, width, dtype="float8_e4m3fn"), float32(rows // 32, width // 32)
        form = FP8 | {"fmt": "e2m1", "x_block_size": (32, 32)}
        _tile_kernels().quant.per_token_cast(x, **form)

    for width in sorted(set(widths.values())):
        yield from per_tokens(model, activations, width=width)
    experts = model.n_routed_experts // model.expert_parallel_size
    for rows, width in (
        (experts * 2 * model.moe_intermediate_size, model.hidden_size),
        (experts * model.hidden_size, model.moe_intermediate_size),
    ):
        yield from one_case(functools.partial(weights, rows, width), rows=rows, width=width, fmt="e2m1")


def swiglu_forward_and_per_token_cast(model):
    """mlp.py:shared_forward and routed_experts_forward (expert parallelism beyond one NVLink domain).

    The token alignment is DeepGEMM's (get_theoretical_mk_alignment_for_contiguous_layout): mlp.py sets it.
    """
    clamp = model.swiglu_limit

    def call(tokens, routed, width):
        import torch

        tk = _tile_kernels()
        tk.set_token_alignment(256 if torch.cuda.get_device_capability()[0] == 10 else 128)
        experts = model.n_routed_experts // model.expert_parallel_size
        form = {"psum_num_tokens_per_expert": int32(experts), "topk_weights": float32(tokens)} if routed else {}
        tk.quant.swiglu_forward_and_per_token_cast(empty(tokens, 2 * width), **FP8, **form, clamp_value=clamp)

    yield from per_tokens(model, call, routed=False, width=model.n_shared_experts * model.moe_intermediate_size)
    yield from per_tokens(model, call, routed=True, width=model.moe_intermediate_size)


def swiglu_forward(model):
    """vision_encoder/vit.py:SwiGLU."""

    def call(tokens):
        _tile_kernels().quant.swiglu_forward(empty(tokens, 2 * VIT_MLP), "bf16")

    yield from per_tokens(model, call)


def batched_transpose_weight_sf(model):
    """hugging_face/parameters.py, when weights are loaded: an ordinary weight and grouped, transposed ones."""
    experts = model.n_routed_experts // model.expert_parallel_size

    def call():
        scales = [
            float32(2 * model.moe_intermediate_size // 32, model.hidden_size // 32),
            float32(experts, 2 * model.moe_intermediate_size // 32, model.hidden_size // 32),
        ]
        _tile_kernels().quant.batched_transpose_weight_sf(scales, 32, [False, True], outs=[None, None])

    yield from one_case(call, experts=experts, hidden=model.hidden_size)


def moe_topk_gate(model):
    """mlp.py:gate_forward where the fused gate of DeepGEMM is not used; with and without images, padding and EPLB."""

    def call(tokens, images, decode):
        experts = model.n_routed_experts
        form = {"image_bias": float32(experts), "image_token_mask": boolean(tokens)} if images else {}
        _tile_kernels().moe.moe_topk_gate(
            float32(tokens, experts),
            num_topk=model.num_experts_per_tok,
            use_shared_as_routed=False,
            num_shared_experts=model.n_shared_experts,
            routed_scaling_factor=1.0,
            ep_rank=0,
            mask=boolean(tokens) if decode else None,
            bias=float32(experts),
            force_random=boolean(tokens) if decode else None,
            to_physical_map=int32(experts, 1),
            logical_count=int32(experts),
            scoring_func="sqrtsoftplus",
            **form,
        )

    for images in (False, True):
        for decode in (False, True):
            yield from per_tokens(model, call, images=images, decode=decode)


def apply_rotary(model):
    """layers/rotary_embedding.py (the rope part of the attention's output, turned back) and vision_encoder/vit.py."""

    def attention(tokens):
        context = empty(tokens, model.num_attention_heads, model.head_dim)
        rope = model.qk_rope_head_dim
        cache = float32(model.max_model_len, rope)
        positions = int32(tokens)
        _tile_kernels().transform.apply_rotary(
            context[..., -rope:], cache, None, positions=positions, interleaved=True, conjugate=True
        )

    def vision(tokens):
        qkv = empty(tokens, 3 * VIT_DIM)
        q, k, _ = (part.view(-1, VIT_HEADS, VIT_DIM // VIT_HEADS) for part in qkv.split(VIT_DIM, dim=1))
        _tile_kernels().transform.apply_rotary(q, float32(tokens, VIT_DIM // VIT_HEADS), k, interleaved=False)

    yield from per_tokens(model, attention)
    for shape, call in per_tokens(model, vision):
        yield {**shape, "vision": True}, call


def engram_hash(model):
    """models/deepseek.py:forward; with and without images."""

    def call(tokens, images):
        layers, ngram, heads = model.engram_layers, model.engram_max_ngram_size, model.engram_n_heads
        _tile_kernels().engram.engram_hash(
            int32(tokens, ngram),
            empty(layers, ngram, dtype="int64"),
            int32(layers, ngram - 1, heads),
            int32(layers, (ngram - 1) * heads),
            boolean(tokens) if images else None,
        )

    for images in (False, True):
        yield from per_tokens(model, call, images=images)


def engram_offsets(model):
    """v4_modules/engram_metadata.py, once: torch's own operations, no kernel of TileLang."""

    def call():
        from tile_kernels.torch import engram

        engram.make_offsets(int32(model.engram_layers, model.engram_max_ngram_size - 1, model.engram_n_heads))

    yield from one_case(call, layers=model.engram_layers, heads=model.engram_n_heads)


def engram_fused_weight(model):
    """v4_modules/engram.py:Engram, once per layer when the model is loaded."""

    def call():
        weight = empty(model.hc_mult, model.hidden_size)
        _tile_kernels().engram.fused_weight(weight, weight)

    yield from one_case(call, hc_mult=model.hc_mult, hidden=model.hidden_size)


def engram_gate_fwd(model):
    """v4_modules/engram.py:Engram.forward. The number of SMs is compiled in: other devices need another pack."""

    def call(tokens, images):
        _tile_kernels().engram.engram_gate_fwd(
            empty(tokens, model.hc_mult, model.hidden_size),
            empty(tokens, model.hc_mult + 1, model.hidden_size),
            float32(model.hc_mult, model.hidden_size),
            model.rms_norm_eps,
            1e-6,
            save_for_backward=False,
            image_token_mask=boolean(tokens) if images else None,
            inplace=True,
        )

    for images in (False, True):
        yield from per_tokens(model, call, images=images)
