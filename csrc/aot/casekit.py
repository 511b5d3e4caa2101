"""What the case files of all packs share. Nothing here imports torch before a case runs."""

#: Compression ratios that DeepInfer supports (v4_modules/compress.py:Compressor).
COMPRESS_RATIOS = (1, 2)


def empty(*shape, dtype="bfloat16"):
    """A tensor on the device; values do not matter, since nothing is computed."""
    import torch

    return torch.empty(*shape, dtype=getattr(torch, dtype), device="cuda")


def int32(*shape):
    return empty(*shape, dtype="int32")


def float32(*shape):
    return empty(*shape, dtype="float32")


def boolean(*shape):
    return empty(*shape, dtype="bool")
