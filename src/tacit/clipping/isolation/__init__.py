"""What is computed from which record."""
