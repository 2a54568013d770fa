"""What is known of a request besides its content: when it came, whose it is, how it went. For logs and traces.

Never holds a prompt, an answer or a key.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ..tenants.registry import Tenant


@dataclass(frozen=True, slots=True)
class Arrival:
    """``operation`` as OpenTelemetry's GenAI conventions name it. ``traceparent``: W3C's header, as it came."""

    request_id: str
    operation: str = "chat"
    tenant: Tenant | None = None
    traceparent: str | None = None
    at_ns: int = field(default_factory=time.time_ns)
    began_ns: int = field(default_factory=time.monotonic_ns)

    def now_ns(self) -> int:
        """Nanoseconds since 1970 by a clock that nobody sets while the request lasts: no time of it is negative."""
        return self.at_ns + time.monotonic_ns() - self.began_ns


@dataclass(frozen=True, slots=True)
class Finished:
    """A request that is over. Times are nanoseconds since 1970; ``first_ns`` None: no token came."""

    request_id: str
    operation: str
    model: str
    tenant: str | None
    started_ns: int
    first_ns: int | None
    ended_ns: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    finish_reasons: list[str]
    error: str | None


Observer = Callable[[Finished, Arrival], None]
