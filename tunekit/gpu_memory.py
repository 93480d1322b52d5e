"""GPU memory that a process holds but does not use.

PyTorch keeps the memory of freed tensors for new ones. With fractional GPUs, and with processes
that outlive trials or validations, another process on the same GPU may lack that memory.
"""

from __future__ import annotations

import gc
import sys

__all__ = ["release_unused"]


def release_unused() -> None:
    """Return unused CUDA memory of this process to the device.

    Memory of objects that are still referenced, such as the model of an evaluator, stays. In a
    process that has not imported torch or not used CUDA, this does nothing; it never initializes
    CUDA.

    Example:
        >>> release_unused()
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    gc.collect()  # a network and its optimizer often refer to each other
    cuda.empty_cache()
