"""Offline batches: a file of prompts in, a file of results out, resumable at any point."""
