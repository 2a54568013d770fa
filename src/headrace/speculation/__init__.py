"""Speculation: who proposes tokens, and how likely they are to stand. Knows no model, no engine and no torch."""
