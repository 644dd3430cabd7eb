"""How full the queue's server is: at its maxmemory it refuses submissions, and says so to nobody beforehand."""

from __future__ import annotations

from queuecore.broker import Server
from queuecore.telemetry import metrics


async def show_memory(server: Server) -> None:
    """Show what it uses and what it may use."""
    facts = await server.facts()
    metrics.REDIS_USED_MEMORY.set(facts.used_memory_bytes)
    metrics.REDIS_MAXMEMORY.set(facts.maxmemory_bytes)
