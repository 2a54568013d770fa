"""Golden baselines: what a model answered once, to the bit, kept by platform and mode and compared exactly.

A baseline is never changed in passing: only ``refresh`` writes one, with a reason, under a lock, and whole.
"""
