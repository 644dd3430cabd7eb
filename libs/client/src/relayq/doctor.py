"""Is everything as relayq needs it? Reads the same environment as the services and says what to do next."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Final, Literal, NamedTuple

import anyio
import httpx

from queuecore.broker import QueueCounts, ServerFacts
from queuecore.clock import monotonic
from queuecore.config import Config, load_config
from queuecore.errors import BlobCorrupt, BlobError, BlobNotFound, BrokerError, ConfigurationError
from queuecore.redis import RedisQueue, open_redis
from queuecore.redis.diagnosis import Diagnosis, diagnose
from queuecore.redis.keys import QueueKeys
from queuecore.settings import CommonSettings, read_settings
from queuecore.storage import open_store
from queuecore.storage.encrypted import EncryptedStore

ANSWER_SECONDS: Final = 10.0
OLDEST_VERSION: Final = (7, 0)
POLICY: Final = "noeviction"
MOST_OBJECTS: Final = 2_000
CLOCK_TOLERANCE_SECONDS: Final = 5.0
FULL: Final = 0.8
HTTP_OK: Final = 200


class Finding(NamedTuple):
    """One check's outcome. ``next`` says what to do about it."""

    check: str
    level: Literal["ok", "warning", "problem"]
    text: str
    next: str = ""


async def examine(environ: Mapping[str, str], gateway_url: str) -> AsyncIterator[Finding]:
    """Every finding, as it is made."""
    try:
        common = read_settings(CommonSettings, environ)
    except ConfigurationError as error:
        yield Finding("environment", "problem", str(error), "correct the variables that are named")
        return
    config, finding = _models(common)
    yield finding
    queue = await open_redis(common, name="relayq-doctor")
    try:
        async for finding in _redis(queue, common, config):
            yield finding
    finally:
        await queue.aclose()
    async for finding in _store(common):
        yield finding
    yield await _gateway(gateway_url)


# -- models -----------------------------------------------------------------------------------------------------


def _models(common: CommonSettings) -> tuple[Config | None, Finding]:
    try:
        config = load_config(common.models_file)
    except ConfigurationError as error:
        return None, Finding("models", "problem", str(error), "correct the file; docs/configuration.md lists its keys")
    return config, Finding("models", "ok", f"{len(config.models)} models: {', '.join(config.models)}")


# -- Redis ------------------------------------------------------------------------------------------------------


async def _redis(queue: RedisQueue, common: CommonSettings, config: Config | None) -> AsyncIterator[Finding]:
    try:
        with anyio.fail_after(ANSWER_SECONDS):
            await queue.server.ping()
            before = monotonic()
            facts = await queue.server.facts()
            took = monotonic() - before
            diagnosis = await diagnose(common)
    except (BrokerError, TimeoutError) as error:
        yield Finding(
            "redis", "problem", f"it does not answer: {error or 'too slow'}",
            "check REDIS_URL, REDIS_USERNAME and REDIS_PASSWORD, and that the server runs",
        )  # fmt: skip
        return
    yield Finding("redis", "ok", f"answers in {took * 1000:.0f} ms")
    for finding in server_findings(facts, diagnosis):
        yield finding
    yield await _clock(queue)
    if config is None:
        return
    waiting = 0
    for name, model in config.models.items():
        try:
            counts = await queue.broker(name, model).counts()
        except (BrokerError, ConfigurationError) as error:
            yield Finding("queues", "problem", f"{name}: {error}")
            continue
        waiting += counts.pending + counts.processing
        for finding in queue_findings(name, counts):
            yield finding
    yield reaper_finding(diagnosis, waiting)


def server_findings(facts: ServerFacts, diagnosis: Diagnosis) -> list[Finding]:
    """Version, eviction, persistence, memory and rights."""
    found = [_version(facts.version)]
    if facts.maxmemory_policy == "":
        found.append(
            Finding("eviction", "warning", "the server hides its maxmemory-policy", f"make sure it is {POLICY}")
        )
    elif facts.maxmemory_policy == POLICY:
        found.append(Finding("eviction", "ok", POLICY))
    else:
        found.append(
            Finding(
                "eviction", "problem", f"{facts.maxmemory_policy}: under memory pressure Redis would throw jobs away",
                f"CONFIG SET maxmemory-policy {POLICY}, and in its configuration file",
            )
        )  # fmt: skip
    found.append(_persistence(facts))
    if diagnosis.maxmemory_bytes and (diagnosis.used_memory_bytes or 0) > FULL * diagnosis.maxmemory_bytes:
        share = (diagnosis.used_memory_bytes or 0) / diagnosis.maxmemory_bytes
        found.append(
            Finding("memory", "warning", f"{share:.0%} of maxmemory is in use", "raise maxmemory before it is full")
        )
    found += [
        Finding("rights", "problem" if command == "EVAL" else "warning", f"{command} is forbidden: {lost}",
                f"ACL SETUSER … +{command.lower().replace(' ', '|')}")
        for command, lost in diagnosis.forbidden.items()
    ]  # fmt: skip
    if not diagnosis.forbidden:
        found.append(Finding("rights", "ok", "every command that relayq needs is allowed"))
    return found


def _version(text: str) -> Finding:
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        return Finding("version", "warning", "the server hides its version", "relayq needs Redis 7.0 or Valkey 7.2")
    if (int(match[1]), int(match[2])) < OLDEST_VERSION:
        return Finding("version", "problem", f"{text} is too old", "relayq needs Redis 7.0 or Valkey 7.2")
    return Finding("version", "ok", text)


def _persistence(facts: ServerFacts) -> Finding:
    if facts.appendonly is None:
        return Finding("persistence", "warning", "the server does not say whether it has an AOF", "look it up")
    if not facts.appendonly:
        return Finding(
            "persistence", "warning", "no AOF: a restart of Redis loses every job since its last snapshot",
            "CONFIG SET appendonly yes, and in its configuration file",
        )  # fmt: skip
    match facts.appendfsync:
        case "always":
            return Finding("persistence", "ok", "appendfsync always: no window in which an accepted job can be lost")
        case "everysec":
            return Finding(
                "persistence", "ok",
                "appendfsync everysec: a crash of Redis' host can take the last second; `always` closes that window",
            )  # fmt: skip
        case "no":
            return Finding(
                "persistence", "warning", "appendfsync no: a crash of Redis' host can take what the kernel still held",
                "set appendfsync to everysec or always",
            )  # fmt: skip
        case _:
            return Finding("persistence", "warning", "there is an AOF, but the server hides appendfsync", "look it up")


async def _clock(queue: RedisQueue) -> Finding:
    # Wall clocks, for once: the difference is what is asked for. Queue time is the server's everywhere else.
    from datetime import UTC, datetime  # noqa: PLC0415  only here

    difference = await queue.server.now_ms() / 1000 - datetime.now(UTC).timestamp()
    text = f"Redis' clock is {abs(difference):.2f} s {'ahead of' if difference > 0 else 'behind'} this machine's"
    if abs(difference) <= CLOCK_TOLERANCE_SECONDS:
        return Finding("clock", "ok", text)
    return Finding(
        "clock", "warning", f"{text}; leases are safe (only Redis' clock counts), not_before and deadlines shift",
        "run a time service on both",
    )  # fmt: skip


def queue_findings(name: str, counts: QueueCounts) -> list[Finding]:
    """Depths as KEDA sees them, and what it cannot see."""
    keys = QueueKeys(name)
    held = {"delayed": counts.delayed, "paused": counts.paused, "ordered": counts.ordered}
    hidden = ", ".join(f"{count} {state}" for state, count in held.items() if count)
    text = f"{name}: KEDA sees {counts.pending} in {keys.pending} and {counts.processing} in {keys.processing}"
    found = [Finding("queues", "ok", f"{text}; hidden from it: {hidden}" if hidden else text)]
    if counts.paused_reason:
        found.append(
            Finding("queues", "warning", f"{name} is paused ({counts.paused_reason})", f"relayq resume {name}")
        )
    if counts.deadletter:
        found.append(
            Finding(
                "queues", "warning", f"{name} has {counts.deadletter} dead letters", f"relayq deadletter list {name}"
            )
        )
    return found


def reaper_finding(diagnosis: Diagnosis, open_jobs: int) -> Finding:
    """Whether a reaper is connected, by the names of connections."""
    if diagnosis.clients is None:
        return Finding(
            "reaper", "warning", "CLIENT LIST is forbidden, so nobody can tell whether a reaper runs",
            "ask port 9103: /health/ready",
        )  # fmt: skip
    count = diagnosis.clients.get("relayq-reaper", 0)
    relays = diagnosis.clients.get("relayq-relay", 0)
    if count:
        return Finding("reaper", "ok", f"a reaper is connected; so are {relays} connections of relays")
    return Finding(
        "reaper", "problem", f"no reaper is connected: a dead relay's job waits for ever ({open_jobs} jobs are open)",
        "start one: python -m reaper",
    )  # fmt: skip


# -- store ------------------------------------------------------------------------------------------------------


async def _store(common: CommonSettings) -> AsyncIterator[Finding]:
    try:
        store = await open_store(common)
    except ConfigurationError as error:
        yield Finding("store", "problem", str(error), "set BLOBS_URL as the services have it")
        return
    try:
        with anyio.fail_after(ANSWER_SECONDS):
            await store.check()
        yield Finding("store", "ok", "an object was written, read and deleted")
        if isinstance(store, EncryptedStore):
            async for finding in _encryption(store):
                yield finding
        else:
            yield Finding("encryption", "ok", "off: ENCRYPTION_KEYS is not set")
    except (BlobError, TimeoutError) as error:
        yield Finding("store", "problem", f"{error or 'too slow'}", "check BLOBS_URL, the credentials and the server")
    finally:
        await store.aclose()


async def _encryption(store: EncryptedStore) -> AsyncIterator[Finding]:
    by_key, plain, seen = await key_counts(store)
    more = f" among the first {MOST_OBJECTS}" if seen >= MOST_OBJECTS else ""
    current = store.key_ids[0]
    for key_id, count in sorted(by_key.items()):
        role = "current" if key_id == current else "older"
        if key_id in store.key_ids:
            yield Finding("encryption", "ok", f"{count} objects{more} with key {key_id} ({role})")
        else:
            yield Finding(
                "encryption", "problem", f"{count} objects{more} with key {key_id}, which is not in the ring",
                "add that key again until their retention is over",
            )  # fmt: skip
    for key_id in store.key_ids:
        if key_id not in by_key and key_id != current:
            note = "" if more else ": a replaced one can be removed, a new one put first once all services have it"
            yield Finding("encryption", "ok", f"no object{more} with key {key_id}{note}")
    if plain:
        yield Finding(
            "encryption", "warning", f"{plain} objects{more} are not encrypted: reading them is refused",
            "they were written before keys were set: submit those jobs again",
        )  # fmt: skip
    if not by_key and not plain:
        yield Finding("encryption", "ok", f"on with key {current}; the store holds no object")


async def key_counts(store: EncryptedStore) -> tuple[Mapping[str, int], int, int]:
    """(objects by key id, objects without a header, objects looked at), bounded."""
    by_key: Counter[str] = Counter()
    plain = seen = 0
    async for entry in store.scan():
        if seen >= MOST_OBJECTS:
            break
        seen += 1
        try:
            by_key[await store.key_id(entry.key)] += 1
        except BlobCorrupt:
            plain += 1
        except BlobNotFound:
            continue
    return by_key, plain, seen


# -- gateway ----------------------------------------------------------------------------------------------------


async def _gateway(url: str) -> Finding:
    try:
        async with httpx.AsyncClient(base_url=url, timeout=ANSWER_SECONDS) as http:
            answer = await http.get("/health/ready")
    except httpx.TransportError as error:
        return Finding(
            "gateway", "problem", f"{url} cannot be reached: {error or type(error).__name__}",
            "is it running? otherwise give its address with --url",
        )  # fmt: skip
    if answer.status_code == HTTP_OK:
        return Finding("gateway", "ok", f"{url} is ready")
    return Finding("gateway", "problem", f"{url} is not ready ({answer.status_code}): {answer.text[:500]}")
