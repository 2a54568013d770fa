"""Explain: a recording told step by step: who was scheduled, how much, why, and what the ledger held."""
