"""Client of relayq. ``from relayq import Client``; the ``relayq`` command is ``relayq.command``."""

from relayq.admin import AdminClient
from relayq.client import AsyncClient, Client
from relayq.download import Download
from relayq.errors import (
    Conflict,
    Gone,
    InvalidRequest,
    NotFound,
    NotReachable,
    OutcomeUnknown,
    Refused,
    RelayqError,
    SourceChanged,
    Throttled,
    TooLarge,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    WaitTimeout,
)
from relayq.events import Event
from relayq.job import Fault, Job, Model, ResultFacts

__all__ = [
    "AdminClient",
    "AsyncClient",
    "Client",
    "Conflict",
    "Download",
    "Event",
    "Fault",
    "Gone",
    "InvalidRequest",
    "Job",
    "Model",
    "NotFound",
    "NotReachable",
    "OutcomeUnknown",
    "Refused",
    "RelayqError",
    "ResultFacts",
    "SourceChanged",
    "Throttled",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "WaitTimeout",
]
