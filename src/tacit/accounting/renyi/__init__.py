"""Accountants that use Renyi divergences at several orders."""
