"""Runners for other engines. Each runs in that engine's own environment, so none is imported from here.

``serve.py NAME`` is the program; ``NAME.py`` beside it holds the engine's ``Peer``. Neither may import this package
(``peer_headrace`` apart, which is how this engine takes part), nor anything the engine's environment lacks.
"""
