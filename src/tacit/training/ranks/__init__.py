"""Several processes that take each step together: ranks, the layout of parameters, sharded models."""
