"""What is woven into the steps of a session? Parts: charges, canaries, averages, checks, noise in time."""
