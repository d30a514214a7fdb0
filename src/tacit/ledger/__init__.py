"""One durable budget per data set: training runs and queries are charged to it before data is touched."""

__all__: list[str] = []
