"""The nouns: every type that crosses rooms. Rooms meet here, not in each other. No behaviour, no torch."""
