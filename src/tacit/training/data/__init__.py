"""The data of a session: records by position, from arrays, frames, data sets, users and streams."""
