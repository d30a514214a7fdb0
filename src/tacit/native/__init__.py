"""The optional C++ kernels.

``pip install`` builds them if it finds a compiler; otherwise equivalents in Python replace them.  The
environment variable ``TACIT_NATIVE=0`` turns them off, at any time.

The library must be loaded after torch, because it shares torch's OpenMP runtime and thread pool.  Every
kernel takes the number of threads as an argument; callers pass ``torch.get_num_threads()``.

>>> from tacit import native
>>> (native.library() is None) == (native.why_not() is not None)
True
"""

from tacit.native.loading import library, why_not

__all__ = ["library", "why_not"]
