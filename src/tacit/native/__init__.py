"""Are the optional C++ kernels there? Found if they were built, checked before use, never needed.

``pip install`` builds them where it finds a compiler.  Each has a twin in Python with the same distribution,
which is used without them.  ``TACIT_NATIVE=0`` in the environment turns them off, at any time.

The library is loaded after torch, on purpose: both are built with OpenMP, and the kernels, which are linked
to no runtime of their own, call the one that comes with torch.  So they share one pool of threads; every
kernel takes the number of threads as an argument, and a caller passes ``torch.get_num_threads()``.

>>> from tacit import native
>>> (native.library() is None) == (native.why_not() is not None)
True
"""

from tacit.native.loading import library, why_not

__all__ = ["library", "why_not"]
