"""The optional C++ kernels, which are loaded if they were built, and checked before use.

``pip install`` builds them if it finds a compiler.  Each has a twin in Python with the same distribution,
which replaces it if it was not built.  ``TACIT_NATIVE=0`` in the environment turns them off, at any time.

The library must be loaded after torch.  Both use OpenMP.  The library is not linked to an OpenMP runtime, so
it uses the one that torch loaded, and shares its pool of threads.  Every kernel takes the number of threads
as an argument; callers pass ``torch.get_num_threads()``.

>>> from tacit import native
>>> (native.library() is None) == (native.why_not() is not None)
True
"""

from tacit.native.loading import library, why_not

__all__ = ["library", "why_not"]
