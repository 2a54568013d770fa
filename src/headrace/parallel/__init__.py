"""Ranks that work together: collectives, votes, expert placement."""
