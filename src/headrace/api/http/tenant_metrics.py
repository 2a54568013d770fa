"""What tenants have in hand and were served becomes metrics. Copies; measures nothing and knows no key."""

from __future__ import annotations

from headrace.obs.metrics import Metrics

from ..tenants.tenancy import Tenancy


def put_tenants(metrics: Metrics, tenancy: Tenancy) -> int:
    """Returns how many sequences wait in the fair queue, of all tenants."""
    put, queued = metrics.put, 0
    for tenant in tenancy.registry.tenants:
        name, served = tenant.name, tenancy.served[tenant.name]
        put("tenant_requests_waiting", tenancy.waiting[name], name)
        put("tenant_sequences_running", tenancy.queue.running(name), name)
        put("tenant_turns", served.turns, name)
        put("tenant_wait_seconds", served.wait_s, name)
        put("tenant_prompt_tokens", served.prompt_tokens, name)
        put("tenant_generation_tokens", served.generation_tokens, name)
        queued += tenancy.queue.waiting(name)
    return queued
