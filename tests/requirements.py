"""Every behaviour we promise, by id. A test names the promise it proves; test_requirements.py checks both ways.

An id is ``area:verb:outcome``. ``docs/guarantees.md`` is made from this file and from the marks found in the tests:

    python tests/requirements.py            writes the page
    python tests/requirements.py --check    says whether it is current
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "guarantees.md"
MOST: Final = 200


class Requirement(NamedTuple):
    """``deferred`` says why nothing tests it yet; a deferred promise with a test is an error."""

    promise: str
    deferred: str | None = None


class Guarantee(NamedTuple):
    """One section of the page: what is guaranteed, in a sentence, and the promises that make it up."""

    title: str
    text: str
    requirements: Mapping[str, Requirement]


GUARANTEES: Final[Mapping[str, Guarantee]] = {
    "G1": Guarantee(
        "Nothing lost",
        "From the acknowledgement on, a job is at every instant in exactly one of pending, delayed, paused, waiting "
        "for its ordering key, processing or terminal, whatever process is killed at whatever instruction.",
        {
            "job:any:in-one-place": Requirement(
                "After any sequence of verbs, crashes and lost replies a live job is in exactly one structure."
            ),
            "submit:submit:one-step": Requirement(
                "Record, queue entry, index and idempotency answer appear together or not at all."
            ),
            "submit:kill:nothing-half-made": Requirement(
                "A gateway killed between upload and answer leaves a whole job or none."
            ),
            "run:kill:one-verdict-at-every-step": Requirement(
                "A relay killed before or after any call of a job leaves one verdict, one event, the right bytes, "
                "and nothing in pending, processing, lease or first-seen."
            ),
            "reap:any:every-entry-in-turn": Requirement(
                "However many jobs run, each pass of the reaper looks at the next page of them: none is never looked at."
            ),
            "reap:kill:reaper-killed-anywhere": Requirement(
                "A reaper killed between any two of its steps loses and doubles nothing."
            ),
            "server:kill:nothing-lost-with-always": Requirement(
                "With appendfsync always, kill -9 of Redis at any point loses nothing that was acknowledged."
            ),
            "load:kill:every-job-ends": Requirement(
                "200 jobs on 8 relays, one killed every 200 ms: 200 verdicts, runs within the cap, nothing left over."
            ),
            "restart:submit:loops-resume": Requirement(
                "Redis restarted under load: every loop resumes or its process exits non-zero, and nothing is lost."
            ),
            "reconcile:reconcile:job-in-no-structure-returns": Requirement(
                "A live job that an operator or a fault removed from every structure becomes pending again."
            ),
            "pause:pause:hidden-and-kept": Requirement(
                "A paused queue hides its waiting jobs from claims and from KEDA, accepts new ones and keeps the order."
            ),
            "pause:pause:bounded-script": Requirement(
                "Pausing and resuming a stream is done in scripts of bounded work; claims and submissions in between see a "
                "paused queue, and the reaper goes on where the driver died."
            ),
            "promote:promote:due-job-returns": Requirement("A delayed job becomes pending when it is due, not before."),
            "ordered:any:next-let-in": Requirement(
                "Every verdict of the head of an ordering key, of whatever kind, lets the next job of the key in."
            ),
            "operator:recipe:redis-cli-works": Requirement(
                "The redis-cli recipes of the seed work at any moment; a live job removed by LREM comes back."
            ),
        },
    ),
    "G2": Guarantee(
        "One owner",
        "At most one current claim per job. A job whose owner renews in time, and whose connections come back within "
        "the death grace, is never given to another.",
        {
            "claim:claim:one-current-claim": Requirement("Two workers never hold a current claim on one job."),
            "claim:claim:no-crash-one-run": Requirement(
                "Without crashes every job runs exactly once, while three reapers loop beside the relays."
            ),
            "lease:renew:owner-keeps-its-job": Requirement(
                "An owner that renews in time keeps its job however long it runs; a lapsed, unreaped lease is revived."
            ),
            "death:kill:noticed-in-seconds": Requirement(
                "kill -9 of a relay mid-job, default settings: the job is with another relay in under 5 s."
            ),
            "death:reconnect:owner-keeps-its-job": Requirement(
                "An owner whose connections are cut and come back within the grace keeps its job."
            ),
            "death:outage:silence-is-no-death": Requirement(
                "While the reaper itself cannot see the server, or may not, no owner is declared dead."
            ),
            "death:mass:grace-starts-again": Requirement(
                "When more than half of at least five owners vanish at once, the grace starts again."
            ),
            "death:stop:lease-decides": Requirement(
                "A stopped (not dead) owner keeps its job until its lease is over."
            ),
            "restart:reap:owners-get-a-lease": Requirement(
                "After a restart of Redis, or an outage, nothing is reaped for one lease."
            ),
            "reap:reap:live-lease-left-alone": Requirement("An entry with a live lease is never taken back."),
            "reap:race:many-reapers-reap-once": Requirement(
                "Three reapers on one expired entry, 200 rounds: once in pending, reaps + 1."
            ),
            "reap:gap:moved-entry-left-alone": Requirement(
                "An entry moved to processing whose lease is not yet written is left alone during the first-seen grace."
            ),
            "reap:reap:stranded-pop-requeued-uncounted": Requirement(
                "An entry that never had a lease goes back to the head, and no counter changes."
            ),
            "reap:reap:gone-or-terminal-dropped": Requirement(
                "An entry whose record is gone or terminal is dropped; a verdict never changes."
            ),
            "sigterm:claim:no-job-stranded": Requirement(
                "SIGTERM of an idle relay in the instant a job arrives: the job is not lost and not late."
            ),
        },
    ),
    "G3": Guarantee(
        "One verdict",
        "One terminal record and one event per generation. A late verdict is refused and changes nothing; results lie "
        "under the claim's own key, so a late owner cannot touch the winner's bytes.",
        {
            "verdict:any:one-per-generation": Requirement("A terminal record never changes, except by redrive."),
            "verdict:complete:late-one-refused": Requirement(
                "A relay stopped past its lease and continued cannot record a verdict; the winner's stays."
            ),
            "result:complete:winners-bytes": Requirement("The result served is the winner's, byte for byte."),
            "verdict:any:leaves-every-structure": Requirement(
                "A verdict removes the job from pending, delayed, paused and processing, and its lease."
            ),
        },
    ),
    "G4": Guarantee(
        "Fencing everywhere",
        "renew, complete, fail and release are refused unless fence and claim_id are the current ones; renew, release "
        "and fail also need status processing.",
        {
            "fence:renew:stale-refused": Requirement("renew with a claim that is not current is refused."),
            "fence:complete:stale-refused": Requirement("complete with a claim that is not current is refused."),
            "fence:fail:stale-refused": Requirement("fail with a claim that is not current is refused."),
            "fence:release:stale-refused": Requirement("release with a claim that is not current is refused."),
            "fence:renew:requeued-refused": Requirement("renew of a job that was requeued is refused."),
            "fence:fail:requeued-refused": Requirement("fail of a job that was requeued is refused."),
            "fence:release:requeued-refused": Requirement("release of a job that was requeued queues it once."),
            "fence:complete:requeued-accepted": Requirement(
                "complete is accepted while the job is pending or delayed again and nobody else has claimed it."
            ),
        },
    ),
    "G5": Guarantee(
        "Place kept",
        "Release and redelivery put a job back where it was.",
        {
            "place:release:back-at-the-head": Requirement("A released job is the next to be claimed."),
            "place:reap:older-first": Requirement("Among redelivered jobs the older one is claimed first."),
            "claim:sortedset:fair-share": Requirement(
                "Where tenants take turns, at most 2 (N - 1) jobs of others are claimed before a tenant's first (ADR 0008)."
            ),
        },
    ),
    "G6": Guarantee(
        "Poison bounded",
        "Deaths count when the reaper sees them; past the cap the job is a dead letter, redrivable for 30 days.",
        {
            "poison:reap:deadletter-after-cap": Requirement(
                "A job whose owners die max_reap_attempts + 1 times ends failed/worker_lost in the dead letters, once."
            ),
            "poison:reap:healthy-jobs-run": Requirement("Jobs behind a poisonous one still finish."),
            "poison:any:counters-apart": Requirement("Deaths, failures and releases are counted apart."),
            "deadletter:redrive:new-generation": Requirement(
                "A redriven dead letter runs again with fresh counters, generation + 1; every earlier claim is void."
            ),
            "deadletter:any:kept-for-its-retention": Requirement(
                "Record and input of a dead letter live as long as it can be redriven."
            ),
        },
    ),
    "G7": Guarantee(
        "A refusal costs nothing",
        "A gate or limit that says no takes no claim, changes no counter and hides no other job.",
        {
            "gate:claim:refusal-costs-nothing": Requirement(
                "A refused entry waits and returns to its place with all counters unchanged; jobs behind it run."
            ),
            "gate:claim:fault-waits": Requirement(
                "A gate that cannot say makes the job wait, counted and logged, and no claim is taken."
            ),
            "gate:rate:sliding-window": Requirement(
                "No window of a limit's length, wherever it begins, holds more runs than the limit."
            ),
            "gate:provider:shared-by-models": Requirement("The models of one provider share its limits."),
            "gate:tokens:corrected-by-usage": Requirement(
                "Tokens are taken by estimate with the claim and corrected by what the answer says it used."
            ),
            "gate:slot:given-back": Requirement(
                "Every way out of a run gives its slot back in the same step, before the job can be seen again."
            ),
            "gate:slot:lease": Requirement(
                "The slot of a killed worker comes back with its lease; the limit is never exceeded by kills."
            ),
            "submit:submit:full-queue-refuses": Requirement(
                "Past max_pending a submission is refused and leaves nothing behind."
            ),
            "submit:submit:tenant-cap": Requirement(
                "A tenant's cap of pending jobs refuses that tenant alone, and counts what waits, wherever it waits."
            ),
        },
    ),
    "G8": Guarantee(
        "Cancel always lands",
        "Waiting jobs end at once; running ones see a flag within a second. Once a client was told cancelled, the job "
        "never becomes anything else.",
        {
            "cancel:cancel:waiting-ends-at-once": Requirement(
                "A pending, delayed, paused or ordered job is cancelled at once and never runs."
            ),
            "cancel:cancel:running-is-flagged": Requirement("A running job is flagged and its owner told."),
            "cancel:poll:lost-signal-costs-a-second": Requirement(
                "With the signal lost, the owner still sees the flag and closes the model's connection within 2 s."
            ),
            "cancel:any:flagged-ends-cancelled": Requirement(
                "complete, fail, release and reap of a flagged job end as cancelled."
            ),
            "cancel:any:cancelled-is-final": Requirement("cancelled never changes afterwards."),
        },
    ),
    "G9": Guarantee(
        "Notices at least once, one id",
        "Every verdict makes one outbox event `<id>:<generation>`, delivered until acknowledged.",
        {
            "notice:erase:told-as-it-was": Requirement(
                "A webhook tells of the verdict as it was, though the job was erased, expired or redriven since."
            ),
            "notice:any:one-event-per-verdict": Requirement("Each verdict appends one event with the verdict's id."),
            "notice:events:until-acknowledged": Requirement(
                "An event whose consumer died is given to another; an acknowledged one is gone."
            ),
            "notice:get:completion-seen-without-signal": Requirement(
                "A waiting client sees the verdict within its bound although every signal was lost."
            ),
        },
    ),
    "G10": Guarantee(
        "Clocks",
        "Queue time is the server's; a process compares only its own monotonic clock with itself.",
        {
            "clock:any:server-time-only": Requirement(
                "Relays and reapers with clocks ten minutes off neither requeue early nor late."
            ),
        },
    ),
    "G11": Guarantee(
        "Three outcomes",
        "Every call ends as done, refused or unknown. A repeat of the same call answers the same and changes nothing "
        "more. The client library's own retries are off.",
        {
            "unknown:submit:repeat-changes-nothing": Requirement("submit repeated after a lost reply makes one job."),
            "unknown:claim:repeat-gives-the-same-claim": Requirement(
                "claim repeated with its claim_id gives the same claim and takes no second job."
            ),
            "unknown:complete:repeat-changes-nothing": Requirement(
                "complete repeated after a lost reply is one verdict."
            ),
            "unknown:fail:repeat-changes-nothing": Requirement("fail repeated after a lost reply counts once."),
            "unknown:release:repeat-changes-nothing": Requirement("release repeated after a lost reply queues once."),
            "unknown:cancel:repeat-changes-nothing": Requirement("cancel repeated answers the same."),
            "unknown:any:link-errors-told-apart": Requirement(
                "A call that did not run is told from one that may have run."
            ),
            "contract:any:memory-and-redis-agree": Requirement(
                "Every transport answers and ends like the in-memory specification, lost replies included."
            ),
        },
    ),
    "Transports": Guarantee(
        "Three structures, one contract",
        "Failures that people reported of queues on sorted sets and streams, each as a test by name.",
        {
            "e2e:transports:pod-killed": Requirement(
                "In containers: a pod killed mid-job is replaced on sorted set and stream, and at each stage of a pipeline."
            ),
            "transport:claim:lapsed-deadline": Requirement(
                "A job whose deadline passed while it ran is not sent to and fro: it ends deadline_exceeded."
            ),
            "transport:complete:generations-apart": Requirement(
                "Two generations of one id have a duplicate marker and a result each."
            ),
            "transport:complete:duplicate-suppressed": Requirement("A duplicate result is counted and adds nothing."),
            "transport:complete:empty-token": Requirement("An empty token publishes nothing."),
            "transport:reap:one-copy": Requirement("A retry copy and a reclaimed copy of a job never both wait."),
            "transport:claim:429-behind-fresh": Requirement(
                "Jobs that an upstream refuses with 429 do not run before fresh ones."
            ),
            "transport:sweep:unparsable-is-said": Requirement(
                "A member that is no job is reported when it is removed."
            ),
            "transport:claim:doorbell-is-a-wake-up": Requirement(
                "A doorbell token eaten by a relay that dies costs a second at the most."
            ),
            "transport:any:change-refused": Requirement(
                "Another transport is refused while jobs are left, with the command that drains them."
            ),
            "transport:stream:trim": Requirement("MAXLEN under running, released and waiting entries loses nothing."),
            "transport:stream:xdel": Requirement("An undelivered entry that somebody deleted comes back."),
            "transport:stream:dead-consumer": Requirement(
                "A dead worker leaves no consumer behind, and one deleted by hand takes no entry with it."
            ),
            "transport:stream:adr-message": Requirement(
                "The message of the decision record travels as params, its run in order."
            ),
            "transport:renew:until-the-drain-ends": Requirement("Heartbeats go on until the drain ends."),
            "transport:complete:redis-away": Requirement(
                "Redis away through every repeat of an acknowledgement and back: one verdict."
            ),
            "transport:reap:removed-model": Requirement(
                "The claims of a model that left the configuration are reclaimed."
            ),
        },
    ),
    "Pipelines": Guarantee(
        "A run goes through every stage once",
        "A run of a pipeline is one job that goes from stage to stage: each stage's effect is in its end state exactly "
        "once, whoever is killed meanwhile.",
        {
            "pipeline:complete:output-is-the-next-input": Requirement(
                "Completing a stage takes the run out of it, counts it and puts it into the next stage's queue with a "
                "fresh score, in one script; what the stage answered is the next one's input."
            ),
            "unknown:complete:repeat-at-a-later-stage": Requirement(
                "A repeated complete answers the same and moves nothing, wherever the run is by then."
            ),
            "pipeline:any:memory-and-redis-agree": Requirement(
                "After any sequence of verbs over two stages Redis answers and ends like the specification."
            ),
            "pipeline:any:defaults-of-the-seed": Requirement(
                "A stage has the times of seed 004: lease 90 s, reclaim every 60 s, three attempts."
            ),
            "pipeline:reap:counters-of-a-stage": Requirement(
                "Claims, reaps and failures begin anew at each stage; past a stage's cap its dead letters have the run."
            ),
            "pipeline:reap:base-priority-10": Requirement(
                "What a dead worker left is tried again at base priority 10; what was given back has its old place."
            ),
            "pipeline:redrive:resumes-where-it-failed": Requirement(
                "Redrive resumes at the stage that failed, with that stage's input."
            ),
            "pipeline:status:every-stage": Requirement(
                "A run's status shows every stage with its state, attempts and times, under one id, to one result."
            ),
            "pipeline:kill:each-effect-once": Requirement(
                "A thousand documents through four stages, workers killed at random: each stage's effect once in the end "
                "state, the stages' counters add up, nothing is left in processing."
            ),
            "pipeline:kill:real-relays": Requirement(
                "The same with relays that are killed: every stage reads what the one before it stored, one event a run."
            ),
            "pipeline:complete:before-and-after-only": Requirement(
                "Whoever watches a stage's completion sees the run before it or after it, and nothing between."
            ),
            "pipeline:example:documents": Requirement(
                "Documents of the example go through store, chunk, embed and graph while relays are killed: a node each."
            ),
            "pipeline:cancel:whole-run": Requirement("Cancel ends the whole run, at whatever stage it stands."),
            "pipeline:expire:deadline-of-the-run": Requirement("A deadline is the whole run's."),
            "pipeline:any:ordering-key-of-the-run": Requirement(
                "The next run of an ordering key begins when the whole run before it is over."
            ),
        },
    ),
    "Start and stop": Guarantee(
        "Refuse early, stop in time",
        "With AOF `everysec` a crash of the Redis *host* can take the last second, submissions included; "
        "`appendfsync always` closes it. A start-up check and `relayq doctor` say which window applies.",
        {
            "start:any:eviction-refused": Requirement("A Redis that may evict keys is refused, and readiness says so."),
            "start:any:loss-window-said": Requirement("The loss window that applies is said at the start."),
            "start:any:unknown-setting-refused": Requirement(
                "A variable with our prefix that nobody knows, or out of bounds, stops the start and is named."
            ),
            "relay:exit:code-says-what-happened": Requirement(
                "A relay exits 0 after a verdict, an empty queue or SIGTERM; 3 when its claim was lost; 1 when it "
                "could not work."
            ),
            "relay:sigterm:drain-then-release": Requirement(
                "SIGTERM mid-job: finish within the drain time, else the job goes back to the head, uncounted."
            ),
            "run:revoke:hung-job-ends": Requirement(
                "A job past its execution limit ends failed/execution_timeout although its lease lives."
            ),
            "job:expire:deadline-kept": Requirement(
                "A job that waits past its deadline, or longer than the maximum, expires with an event."
            ),
        },
    ),
    "The client's side": Guarantee(
        "The client's side",
        "What a caller of the HTTP interface may rely on besides the life of a job.",
        {
            "dedup:submit:one-item": Requirement(
                "An item is taken once a window: who submits it again is told of the first job; it is free when that fails."
            ),
            "wait:events:model-is-heard": Requirement(
                "A model that answers as NDJSON or as an event stream is heard while it runs, two lines a second at most, by "
                "its current claim only, and its answer is kept whole."
            ),
            "bytes:params-and-results:as-they-were-sent": Requirement(
                "NaN, lone surrogates, long integers and empty arrays in params and results come back byte for byte."
            ),
            "webhook:gateway-killed:each-event-told": Requirement(
                "Three gateways, one killed every second: each of 300 events is delivered, under one webhook-id."
            ),
            "wait:any:thousands-are-told": Requirement(
                "1,000 event streams and 1,000 long polls on one gateway are all told."
            ),
            "telemetry:trace:submit-to-webhook": Requirement(
                "A request can be followed from submission to run, verdict and webhook."
            ),
            "console:job:live": Requirement("A job is followed in the console to its end without a reload."),
            "console:deadletter:redriven-at-a-pace": Requirement(
                "A dead letter is redriven from the console, at a pace."
            ),
            "console:any:for-everybody": Requirement(
                "The console is used by keyboard, by a screen reader, and without JavaScript."
            ),
            "cache:submit:one-run": Requirement(
                "Equal requests of a model with cache_seconds are one run: 100 simultaneous ones too, until its result is too "
                "old, gone or no result."
            ),
            "cache:submit:never-across-tenants": Requirement("What differs in tenant, model, file or params is run."),
            "cache:read:never-in-the-way": Requirement(
                "Kept reads are made anew after a write; a cache that is away is a miss and never an error."
            ),
            "cache:clear:bounded-steps": Requirement(
                "100,000 kept answers are forgotten in steps that hold Redis for ms."
            ),
            "priority:score:seeds-examples": Requirement("Seed 004's worked examples of its priority score."),
            "priority:score:age-counts": Requirement(
                "What the queue stores orders any two jobs as the seed's formula does at any moment; a wait has a bound."
            ),
            "idempotency:submit:one-job-a-key": Requirement(
                "50 simultaneous posts with one Idempotency-Key: one job, one queue entry, one object."
            ),
            "idempotency:submit:replayed": Requirement(
                "A repeat of an accepted request answers 200, Idempotent-Replay: true and the same job as it is now."
            ),
            "idempotency:submit:another-request-refused": Requirement(
                "The same key with another file or option is 409 while the first is accepted, 422 afterwards."
            ),
            "idempotency:submit:scoped-to-tenant-and-route": Requirement(
                "Two tenants, or two routes, never share an Idempotency-Key."
            ),
            "idempotency:submit:freed-on-failure": Requirement(
                "A request that failed frees its key at once, and its answer is never replayed."
            ),
            "idempotency:any:lives-with-the-record": Requirement(
                "A key lives as long as the record of its job: no answer names a job that is gone."
            ),
            "idempotency:kill:freed-within-15-s": Requirement(
                "SIGKILL of a gateway in the middle of an upload frees the key within 15 s, SIGTERM at once."
            ),
            "tenant:key:others-jobs-are-404": Requirement("Another tenant's job is 404 on every route."),
            "tenant:key:rights-kept": Requirement("A key may do what its rights say, and nothing else."),
            "tenant:key:changed-without-restart": Requirement(
                "Keys are added and removed without a restart; a file that cannot be read locks nobody out."
            ),
            "tenant:limit:requests-and-bytes": Requirement(
                "A tenant's requests and uploaded bytes are bounded over all gateways, and headers say what is left."
            ),
            "tenant:address:spoof-changes-nothing": Requirement(
                "X-Forwarded-For counts only from trusted proxies: a spoofed one does not change a limiter's key."
            ),
            "retention:erase:gone-with-a-cause": Requirement(
                "A finished job that its client deletes is 410 with the cause at once, and 404 after its tombstone."
            ),
            "wait:prefer:200-when-done-else-202": Requirement(
                "POST with Prefer: wait=N answers 200 with the verdict when it comes within N s, else 202."
            ),
            "wait:events:status-then-done": Requirement(
                "The event stream tells each status, then the verdict, then done, and ends."
            ),
            "wait:events:resumed-by-last-event-id": Requirement(
                "A client that comes back with Last-Event-ID is told only what it does not know."
            ),
            "wait:events:one-subscription-for-all": Requirement(
                "All streams and long polls of a gateway share one subscription, and are told within a second."
            ),
            "wait:any:no-verdict-missed-between-read-and-wait": Requirement(
                "A verdict in any instant around the start of a wait is told at once, not at the next look."
            ),
            "webhook:verdict:signed-as-standard-webhooks": Requirement(
                "A verdict is told with the headers of Standard Webhooks, signed with every active secret."
            ),
            "webhook:verdict:one-sender": Requirement("Three gateways send each event once when nothing fails."),
            "webhook:retry:same-bytes-fresh-signature": Requirement(
                "Every attempt has the same id and bytes, and a timestamp and signature of its own."
            ),
            "webhook:retry:plan-outlives-the-gateway": Requirement(
                "The plan of attempts goes on when another gateway takes over."
            ),
            "webhook:retry:parked-and-redelivered": Requirement(
                "A notice given up after a day is parked, listed with every attempt, and delivered again by hand."
            ),
            "webhook:any:slow-receiver-delays-nobody": Requirement(
                "50 notices to a receiver that hangs or trickles: 20 others are served within 2 s."
            ),
            "webhook:guard:only-public-targets": Requirement(
                "Loopback, private, link-local, CGNAT, NAT64, 6to4, multicast and metadata addresses are refused, in "
                "whatever form they are written."
            ),
            "webhook:guard:judged-address-dialled": Requirement(
                "The address that was judged is the one that is dialled; TLS and Host keep the name."
            ),
        },
    ),
}

REQUIREMENTS: Final[Mapping[str, Requirement]] = {
    key: requirement for guarantee in GUARANTEES.values() for key, requirement in guarantee.requirements.items()
}


class Proof(NamedTuple):
    """A marked test: ``path`` from the repository's root."""

    key: str
    path: str
    test: str


def proofs(root: Path = ROOT) -> Iterator[Proof]:
    """Every ``@requirement("…")`` on a test function or class, and in a module's ``pytestmark``, from the sources."""
    for pattern in ("libs/*/tests", "services/*/tests", "tests"):
        for directory in sorted(root.glob(pattern)):
            for path in sorted(directory.rglob("test_*.py")):
                yield from marks(path.read_text("utf-8"), path.relative_to(root).as_posix())


def marks(source: str, path: str) -> Iterator[Proof]:
    """The marks of one file."""
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for decorator in node.decorator_list:
                yield from (Proof(key, path, node.name) for key in _keys(decorator))
        elif isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets
        ):
            yield from (Proof(key, path, "every test") for inner in ast.walk(node.value) for key in _keys(inner))


def _keys(node: ast.AST) -> Iterator[str]:
    if not isinstance(node, ast.Call):
        return
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name == "requirement":
        for argument in node.args:
            if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                raise TypeError(f"line {node.lineno}: requirement() takes literal strings")
            yield argument.value


def page(found: Mapping[str, list[Proof]]) -> str:
    """``docs/guarantees.md``."""
    lines = [
        "# Guarantees",
        "",
        "What relayq promises, and the test that proves each promise. Made by `python tests/requirements.py` from the",
        "manifest in that file and the `@requirement(…)` marks of the tests, and checked both ways by a test.",
    ]
    for name, guarantee in GUARANTEES.items():
        title = guarantee.title if " " in name else f"{name} {guarantee.title.lower()}"
        lines += ["", f"## {title}", "", guarantee.text, "", "| id | promise | proved in |", "|---|---|---|"]
        for key, requirement in guarantee.requirements.items():
            files = dict.fromkeys(proof.path for proof in found.get(key, []))
            where = "<br>".join(f"[{Path(path).name}](../{path})" for path in files)
            lines.append(f"| `{key}` | {requirement.promise} | {where or requirement.deferred or 'nothing yet'} |")
    return "\n".join(lines) + "\n"


def current_page() -> str:
    """The page as manifest and marks are now."""
    found: dict[str, list[Proof]] = {}
    for proof in proofs():
        found.setdefault(proof.key, []).append(proof)
    return page(found)


def main(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` compare it; 1 when it differs."""
    if arguments == ["--check"]:
        return 0 if PAGE.read_text("utf-8") == current_page() else 1
    _ = PAGE.write_text(current_page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
