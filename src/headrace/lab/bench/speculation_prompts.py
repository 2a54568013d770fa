"""Prompts for the speculation bench: answers that copy what stands in the prompt, and one that does not."""

from __future__ import annotations

CODE = '''class Account:
    """Money of one owner. Never negative."""

    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("a deposit must be positive")
        self.balance = self.balance + amount
        self.history.append(("deposit", amount))
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance = self.balance - amount
        self.history.append(("withdraw", amount))
        return self.balance
'''
ARTICLE = (
    "A water wheel turns the weight of falling water into work. The channel that brings the water to the wheel is "
    "called the headrace, and the one that takes it away is the tailrace. A sluice at the mouth of the headrace sets "
    "how much water comes. In an overshot wheel the water falls into buckets near the top, and the wheel turns in the "
    "direction of the stream. In an undershot wheel the stream pushes paddles at the bottom. Overshot wheels use more "
    "of the water's energy, but they need a greater fall. Mills of this kind ground corn, sawed wood and drove "
    "hammers for many centuries, long before steam."
)
STORY = "Tell me a story about a miller who learns to listen to the river."


def copy_code() -> str:
    """A listing twice over and the beginning of a third copy."""
    return f"{CODE}\n\n{CODE}\n\n{CODE[:90]}"


def quote_summary() -> str:
    """An article, quoted once, and the beginning of the next quotation."""
    return f"{ARTICLE}\n\nIn the words of the text:\n\n{ARTICLE}\n\nIn the words of the text:\n\n{ARTICLE[:60]}"
