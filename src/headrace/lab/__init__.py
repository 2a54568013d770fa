"""The laboratory: replays and explains what an engine did. Nothing that serves may import it."""
