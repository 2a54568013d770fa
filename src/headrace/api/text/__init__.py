"""Text: the only place where strings become token ids and ids become strings. No model, no HTTP."""
