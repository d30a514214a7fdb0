"""The optional C++ kernels: found if they were built, checked before use, never needed.

``pip install`` builds them if it finds a compiler.  Each has a twin in Python with the same distribution,
which takes its place otherwise.  ``TACIT_NATIVE=0`` in the environment turns them off, at any time.

The library must be loaded after torch.  Both are built with OpenMP, and the kernels are linked to no runtime
of their own, so they use the one that torch brought, and share its pool of threads.  Every kernel takes the
number of threads as an argument; callers pass ``torch.get_num_threads()``.

>>> from tacit import native
>>> (native.library() is None) == (native.why_not() is not None)
True
"""

from tacit.native.loading import library, why_not

__all__ = ["library", "why_not"]
