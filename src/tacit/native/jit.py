"""Triton's compiler ``jit`` and its language ``tl``; importing this module imports Triton if it is installed.

Builds of torch for CUDA include Triton.  Without Triton, kernels are defined but never launched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    import triton.language as tl

    @overload
    def jit(kernel: Callable[..., Any]) -> Any: ...
    @overload
    def jit(*, do_not_specialize: Sequence[str]) -> Callable[[Callable[..., Any]], Any]: ...
    def jit(kernel: Any = None, *, do_not_specialize: Sequence[str] = ()) -> Any:
        """Compile a kernel at its first launch, and again if an integer argument becomes 1 or a multiple of
        16, or ceases to be. Arguments in ``do_not_specialize`` are excepted."""
else:
    try:
        import triton.language as tl
        from triton import jit
    except ImportError:
        tl = None

        def jit(kernel=None, *, do_not_specialize=()):
            """Return the kernel unchanged."""
            del do_not_specialize
            return jit if kernel is None else kernel


__all__ = ["jit", "tl"]
