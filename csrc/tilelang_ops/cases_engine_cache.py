"""DeepInfer's own ops around attention: norm, rope, quantization and the paged KV caches.

`op` imports them from deepinfer/model_executor/layers/tilelang_ops, unmodified.
"""

import functools

from case_tools import one_case, per_tokens, swa_block
from casekit import COMPRESS_RATIOS, empty, float32, int32
from cases_tile_kernels import FP8, VIT_DIM
from engine_import import op

#: Blocks in a made-up cache: a run-time symbol in every kernel.
BLOCKS = 16


def norm(model):
    """layers/layernorm.py (inputs of attention in fp8 with bf16 beside, latents, finals) and vision_encoder/vit.py.

    The row stride of a latent cut out of a wider projection is compiled in.
    """

    def call(tokens, width, stride, fp8, residual):
        x = empty(tokens, stride)[:, :width]
        op("norm", "norm")(
            x,
            empty(width),
            residual=empty(tokens, width) if residual else None,
            eps=1e-6 if width == VIT_DIM else model.rms_norm_eps,
            return_bf16=fp8 and width == model.hidden_size,
            **(FP8 if fp8 else {}),
        )

    rank, head, hidden = model.q_lora_rank, model.head_dim, model.hidden_size
    for width, stride, fp8, residual in (
        (hidden, hidden, True, False),
        (hidden, hidden, False, False),
        (rank, rank + head, True, False),
        (rank, rank, True, False),
        (head, head, False, False),
        (head, rank + head, False, False),
        (VIT_DIM, VIT_DIM, False, False),
        (VIT_DIM, VIT_DIM, False, True),
    ):
        yield from per_tokens(model, call, width=width, stride=stride, fp8=fp8, residual=residual)


def _rope(model, tokens, width):
    from deepinfer.model_executor.layers.tilelang_ops.fused_transform import RopeArgs

    dim = model.qk_rope_head_dim
    return RopeArgs(int32(tokens), float32(model.max_model_len, dim), dim, False, offset=width - dim)


def _cache(block, layout):
    return empty(BLOCKS, block, 1, layout.bytes_per_token, dtype="uint8")


def _formats():
    op("cache_common", "V41_FORMAT")
    from deepinfer.model_executor.layers.tilelang_ops import cache_common

    return cache_common


def fused_transform_query(model):
    """attn.py:_q_b_norm_rope and index_attn.py:_quantize_q. Above 126 MiB of input upstream takes another kernel."""

    def attention(tokens):
        q = empty(tokens, model.num_attention_heads, model.head_dim)
        fused = op("fused_transform", "fused_norm_rope_hadamard_cast_store_kvcache")
        fused(q, norm_args=None, rope_args=_rope(model, tokens, model.head_dim))

    def index(tokens):
        q = empty(tokens, model.index_n_heads, model.index_head_dim)
        fused = op("fused_transform", "fused_norm_rope_hadamard_cast_store_kvcache")
        from deepinfer.model_executor.layers.tilelang_ops.fused_transform import CastArgs

        cast = CastArgs.from_cache_format(_formats().FP4_INDEX_KV_FORMAT)
        fused(q, rope_args=_rope(model, tokens, model.index_head_dim), cast_args=cast)

    yield from per_tokens(model, attention)
    for shape, call in per_tokens(model, index):
        yield {**shape, "index": True}, call


def fused_transform_window(model):
    """The sliding window's keys: attn.py:_prepare_swa_kv (prefill in bf16, decode into the cache), DFlash's attention.

    With context parallelism DFlash has normed them before (attn.py, main_k).
    """

    def call(tokens, store, normed, stride):
        fused = op("fused_transform", "fused_norm_rope_hadamard_cast_store_kvcache")
        from deepinfer.model_executor.layers.tilelang_ops.fused_transform import CastArgs, KVCacheOutArgs, NormArgs

        layout = _formats().V41_FORMAT
        x = empty(tokens, stride)[:, stride - model.head_dim :]
        fused(
            x,
            norm_args=None if normed else NormArgs(empty(model.head_dim), model.rms_norm_eps),
            rope_args=_rope(model, tokens, model.head_dim),
            cast_args=CastArgs("e4m3", 32, round_sf=True, sf_format="ue8m0", cast_back=not store),
            out_args=KVCacheOutArgs(_cache(swa_block(model), layout), int32(tokens)) if store else None,
        )

    wide = model.q_lora_rank + model.head_dim
    for store, normed, stride in ((False, False, wide), (True, False, wide), (True, True, model.head_dim)):
        yield from per_tokens(model, call, store=store, normed=normed, stride=stride)


def fused_transform_compressed(model):
    """compress.py:forward_store_kv_cache: the compressed keys into their cache, fp4 or fp8, with and without a copy."""

    def call(tokens, ratio, layout, copy):
        fused = op("fused_transform", "fused_norm_rope_hadamard_cast_store_kvcache")
        from deepinfer.model_executor.layers.tilelang_ops.fused_transform import CastArgs, KVCacheOutArgs, NormArgs

        form = getattr(_formats(), layout)
        x = empty(tokens, 1, model.head_dim)
        fused(
            x,
            norm_args=NormArgs(empty(model.head_dim), model.rms_norm_eps),
            rope_args=_rope(model, tokens, model.head_dim),
            cast_args=CastArgs.from_cache_format(form),
            out_args=KVCacheOutArgs(
                _cache(model.block_size // ratio, form),
                int32(tokens),
                out=empty(*x.shape) if copy else None,
                out_stage="norm",
                layout=form,
            ),
        )

    for ratio in COMPRESS_RATIOS:
        for layout in ("V41_FP4_FORMAT", "V41_FORMAT"):
            for copy in (False, True):
                yield from per_tokens(model, call, ratio=ratio, layout=layout, copy=copy)


def fused_transform_index_key(model):
    """index_attn.py: the indexer's keys, fp4, into their cache."""

    def call(tokens, ratio):
        fused = op("fused_transform", "fused_norm_rope_hadamard_cast_store_kvcache")
        from deepinfer.model_executor.layers.tilelang_ops.fused_transform import CastArgs, KVCacheOutArgs, NormArgs

        form = _formats().FP4_INDEX_KV_FORMAT
        fused(
            empty(tokens, model.index_head_dim),
            norm_args=NormArgs(empty(model.index_head_dim), model.rms_norm_eps),
            rope_args=_rope(model, tokens, model.index_head_dim),
            cast_args=CastArgs.from_cache_format(form),
            out_args=KVCacheOutArgs(_cache(model.block_size // ratio, form), int32(tokens), layout=form),
        )

    for ratio in COMPRESS_RATIOS:
        yield from per_tokens(model, call, ratio=ratio)


def store_kv_cache(model):
    """attn.py: the window's keys of a prefill into the cache."""

    def call(tokens):
        cache = _cache(swa_block(model), _formats().V41_FORMAT)
        op("store_kv_cache", "store_kv_cache")(empty(tokens, 1, model.head_dim), cache, int32(tokens))

    yield from per_tokens(model, call, "prefill")


def load_paged_kv_cache(model):
    """attn.py (window and compressed keys, to bf16) and index_attn.py:_load_prefill_kv (fp4 as it is)."""

    def call(tokens, layout, block, out):
        form = getattr(_formats(), layout)
        op("load_paged_kv_cache", "load_paged_kv_cache")(
            _cache(block, form),
            int32(4, 4),
            tokens,
            out=empty(tokens, model.head_dim) if out else None,
            layout=form,
        )

    yield from per_tokens(model, call, "prefill", layout="V41_FORMAT", block=swa_block(model), out=True)
    for ratio in COMPRESS_RATIOS:
        block = model.block_size // ratio
        yield from per_tokens(model, call, "prefill", layout="V41_FP4_FORMAT", block=block, out=True)
        yield from per_tokens(model, call, "prefill", layout="V41_FORMAT", block=block, out=True)
        yield from per_tokens(model, call, "prefill", layout="FP4_INDEX_KV_FORMAT", block=block, out=False)


def compress_and_update_state(model):
    """compress.py:forward_pre_norm, where two keys become one; prefill with and without context parallelism."""
    dim, ratio = model.head_dim, COMPRESS_RATIOS[-1]
    state = functools.partial(float32, BLOCKS, ratio + model.nextn, 2, dim)

    def prefill(tokens, mirror):
        score, latent = float32(tokens, 2 * dim).chunk(2, dim=-1)
        op("compress", "compress_and_update_state_prefill")(
            score, latent, state(), int32(1), int32(tokens // ratio + 1), int32(2), int32(2), int32(2), ratio,
            int32(tokens) if mirror else None,
        )  # fmt: skip

    def decode(tokens):
        score, latent = float32(tokens, 2 * dim).chunk(2, dim=-1)
        op("compress", "compress_and_update_state_decode")(
            score, latent, state(), int32(tokens), int32(tokens), max_seqlen_q=model.nextn + 1, compress_ratio=ratio
        )

    for mirror in (False, True):
        yield from per_tokens(model, prefill, "prefill", mirror=mirror)
    yield from per_tokens(model, decode, "decode")


def state_slice(model):
    """worker/cache_engine.py: the window state of a sequence, in and out of the store (select, load)."""

    def call(name, layers):
        width = _formats().V41_FORMAT.bytes_per_token
        store = empty(layers, swa_block(model) + 128, width, dtype="uint8")
        op("state_cache", name)(empty(layers, swa_block(model), width, dtype="uint8"), store, 128)

    for name in ("select_state_slice", "load_state_to_cache"):
        layers = model.num_hidden_layers
        yield from one_case(functools.partial(call, name, layers), op=name, layers=layers)
