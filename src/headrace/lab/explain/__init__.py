"""Explain: a recording told step by step. Who was scheduled, how much, why, and what the ledger held at each moment."""
