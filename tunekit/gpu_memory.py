"""GPU memory that a process holds and does not use.

PyTorch keeps memory that tensors have given back, for its next tensors. With fractional GPUs, and
with processes that live on between trials or validations, that is memory which another process on
the same GPU may be short of.
"""

from __future__ import annotations

import gc
import sys

__all__ = ["release_unused"]


def release_unused() -> None:
    """Return the CUDA memory that this process does not use to the device.

    What is still referred to stays, such as the model of an evaluator. Does nothing in a process
    that has not imported torch or has not used CUDA; in particular, it does not begin to.

    Example:
        >>> release_unused()
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    gc.collect()  # a network and its optimizer often refer to each other
    cuda.empty_cache()
