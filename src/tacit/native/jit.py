"""Is Triton's compiler installed? If so, here it is, with its language as ``tl``; importing this imports it.

Builds of torch for CUDA bring it.  Elsewhere kernels are defined and never launched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import triton.language as tl

    def jit(kernel: Callable[..., Any]) -> Any:
        """Compile a kernel at its first launch."""
else:
    try:
        import triton.language as tl
        from triton import jit
    except ImportError:
        tl = None

        def jit(kernel):
            """Leave the kernel as it is."""
            return kernel


__all__ = ["jit", "tl"]
