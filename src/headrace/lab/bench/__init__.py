"""Measurements of this engine, of this machine's limits, and of other engines beside it."""
