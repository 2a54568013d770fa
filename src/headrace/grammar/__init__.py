"""Structured outputs: constraints compiled in the background, matched token by token. Knows no model and no text."""
