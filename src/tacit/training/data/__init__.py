"""What does a session train on? Records by position: from arrays, frames, data sets, users, streams."""
