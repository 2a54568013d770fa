"""Arithmetic behind one interface (``ops``). Backends are folders; ``resolve`` picks one. Never schedules."""
