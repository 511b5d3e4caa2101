"""tile-kernels' hyper-connection kernels as DeepInfer calls them: v4_modules/mhc_ops.py and mhc_modeling.py.

On CUDA most layers use DeepGEMM's mega_mhc; these are for the first layer, layers with an engram, and the head.
"""

from case_tools import one_case, per_tokens
from casekit import empty, float32
from engine_import import apply_worker_settings

#: hugging_face/config.py:_GPT_DEFAULTS["hc_post_mult_value"]
POST_MULTIPLIER = 2.0


def _mhc():
    from tile_kernels import mhc

    apply_worker_settings()
    return mhc


def _splits():
    """mhc_ops.py: N_SPLITS_ASCEND, N_SPLITS_CUDA."""
    from tile_kernels.config import is_ascend

    return 1 if is_ascend() else 16


def _mixes(model):
    return model.hc_mult * (model.hc_mult + 2)


def expand_to_mhc_fwd(model):
    """mhc_ops.py:expand_to_mhc"""

    def call(tokens):
        out = empty(tokens, model.hc_mult, model.hidden_size)
        _mhc().expand_to_mhc_fwd(empty(tokens, model.hidden_size), out)

    yield from per_tokens(model, call)


def mhc_post_fwd(model):
    """mhc_ops.py:mhc_post, called by hc.py:hc_post with one sequence of all tokens."""

    def call(tokens):
        hc, hidden = model.hc_mult, model.hidden_size
        _mhc().mhc_post_fwd(
            empty(1, tokens, hidden),
            empty(1, tokens, hc, hidden),
            float32(1, tokens, hc, 1),
            float32(1, tokens, hc, hc),
        )

    yield from per_tokens(model, call)


def mhc_pre_apply_mix_fwd(model):
    """mhc_ops.py:mhc_pre_apply_mix"""

    def call(tokens):
        hc, hidden = model.hc_mult, model.hidden_size
        _mhc().mhc_pre_apply_mix_fwd(empty(tokens, hc, hidden), float32(tokens, hc), empty(tokens, hidden))

    yield from per_tokens(model, call)


def mhc_head_compute_mix_fwd(model):
    """mhc_ops.py:mhc_head_compute_mix, in front of the language model's head."""

    def call(tokens):
        mix = float32(tokens, model.hc_mult)
        _mhc().mhc_head_compute_mix_fwd(mix, float32(1), float32(model.hc_mult), float32(*mix.shape), model.hc_eps)

    yield from per_tokens(model, call)


def mhc_pre_split_mixes_fwd(model):
    """mhc_ops.py:mhc_pre_split_mixes"""

    def call(tokens):
        hc = model.hc_mult
        _mhc().mhc_pre_split_mixes_fwd(
            float32(tokens, _mixes(model)),
            float32(3),
            float32(_mixes(model)),
            float32(tokens, hc),
            float32(tokens, hc),
            float32(tokens, hc * hc),
            POST_MULTIPLIER,
            model.hc_eps,
        )

    yield from per_tokens(model, call)


def mhc_sinkhorn_fwd(model):
    """mhc_ops.py:sinkhorn_normalize"""

    def call(tokens):
        x = float32(tokens, model.hc_mult, model.hc_mult)
        _mhc().mhc_sinkhorn_fwd(x, float32(*x.shape), model.hc_sinkhorn_iters, model.hc_eps)

    yield from per_tokens(model, call)


def mhc_fn_normw_merge_fwd(model):
    """mhc_ops.py:mhc_pre_norm_fn, where the checkpoint has not folded the norm's weight into fn."""

    def call():
        fn = float32(_mixes(model), model.hc_mult * model.hidden_size)
        _mhc().mhc_fn_normw_merge_fwd(fn, float32(fn.shape[1]), float32(*fn.shape))

    yield from one_case(call, mixes=_mixes(model), width=model.hc_mult * model.hidden_size)


def mhc_reduce_partials_and_rmsnorm_fwd(model):
    """mhc_ops.py:mhc_pre_norm_fn, after DeepGEMM's tf32_hc_prenorm_gemm."""

    def call(tokens):
        mixes = _mixes(model)
        _mhc().mhc_reduce_partials_and_rmsnorm_fwd(
            float32(_splits(), tokens, 1, mixes),
            float32(_splits(), tokens, 1),
            float32(tokens, 1, mixes),
            float32(tokens, 1),
            float32(tokens, mixes),
            rms_group_size=model.hc_mult * model.hidden_size,
            rms_eps=model.rms_norm_eps,
            n_splits=_splits(),
        )

    yield from per_tokens(model, call)


def mhc_pre_big_fuse_fwd(model):
    """mhc_modeling.py:mhc_pre_big_fuse, where hyper-connections are not shifted."""

    def call(tokens):
        hc, hidden, mixes = model.hc_mult, model.hidden_size, _mixes(model)
        _mhc().mhc_pre_big_fuse_fwd(
            float32(_splits(), tokens, mixes),
            float32(_splits(), tokens),
            float32(3),
            float32(mixes),
            empty(tokens, hc, hidden),
            float32(tokens, hc),
            float32(tokens, hc * hc),
            empty(tokens, hidden),
            model.rms_norm_eps,
            model.hc_eps,
            model.hc_eps,
            POST_MULTIPLIER,
            model.hc_sinkhorn_iters,
            n_splits=_splits(),
        )

    yield from per_tokens(model, call)
