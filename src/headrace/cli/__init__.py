"""The command line: the top door. Text a command produces goes to stdout; everything about it goes to stderr.

Imports of torch and of the engine happen inside commands, so that help and listings answer at once.
"""
