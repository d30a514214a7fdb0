"""How do several processes take each step together? Ranks, the layout of parameters, and models in shards."""
