"""Triton's compiler and its language as ``tl``, if they are installed; importing this module imports them.

Builds of torch for CUDA bring Triton.  Without it kernels are defined but never launched.
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
        """Compile a kernel at its first launch, and again for integer arguments that become 1 or a multiple
        of 16, or cease to be; arguments in ``do_not_specialize`` are excepted."""
else:
    try:
        import triton.language as tl
        from triton import jit
    except ImportError:
        tl = None

        def jit(kernel=None, *, do_not_specialize=()):
            """Leave the kernel as it is."""
            del do_not_specialize
            return jit if kernel is None else kernel


__all__ = ["jit", "tl"]
