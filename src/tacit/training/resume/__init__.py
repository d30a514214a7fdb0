"""Resuming a run: its state on disk, and digests of the loss and model that it belongs to."""
