"""Which routes there are, by path: for what is refused before it finds its route, and to help who nearly found one.

Tells templates (``/v1/models/{name}``) and never a client's own words.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.routing import BaseRoute, Route

UNKNOWN = "unknown"
BASE = "OpenAI's clients take a base URL that ends in /v1, Anthropic's one without it"


class Paths:
    """Of all ``routes`` that are added until a request comes."""

    def __init__(self) -> None:
        self._routes: list[Route] = []

    def add(self, routes: Iterable[BaseRoute]) -> None:
        self._routes += [route for route in routes if isinstance(route, Route)]

    def find(self, path: str) -> str | None:
        """The template of the route that would answer at ``path``, whatever the method."""
        return next((route.path for route in self._routes if route.path_regex.match(path)), None)

    def hint(self, path: str) -> str:
        """For a path that is none: the one that was meant, if ``/v1`` is missing or there twice."""
        for meant in (f"/v1{path}", path.replace("/v1/v1/", "/v1/", 1)):
            if meant != path and self.find(meant):
                return f"; {meant} is one: {BASE}"
        return ""
