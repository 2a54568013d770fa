"""Headrace: a language-model inference engine in Python with a C++ core."""

__version__ = "0.1.0"
