"""Requests to object storage: how long a server may be silent, how often a request is tried, and one error after that.

The libraries used here have nested retries of their own: s3fs asks a silent server 5 × 5 times, 15 seconds each, and an
upload through it has no limit at all, because aiohttp waits without a timeout for the "100 Continue" that botocore asks
for. So each library is set to try once, and tries and time are counted here, for all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import fsspec
from upath import UPath

from fusionkit.errors import StoreError, UsageError, first_line

TIMEOUT, TRIES = "FUSIONKIT_STORAGE_TIMEOUT", "FUSIONKIT_STORAGE_TRIES"
SECONDS, ATTEMPTS = 20.0, 5
# Bytes of an upload that add one more timeout: a server that accepts fewer in that time counts as silent.
PACE = 16 << 20
LONGEST_PAUSE = 8.0
CREDENTIALS = (
    "check the address, the credentials (for s3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL) and the "
    "network"
)
# Errors that may not occur the next time: each library's connection errors.
PASSING = {
    "botocore.HTTPClientError", "botocore.ConnectionError", "botocore.ResponseParserError",
    "botocore.IncompleteReadError", "aiohttp.ClientError", "obstore.GenericError", "gcsfs.ChecksumError",
    "requests.ConnectionError", "requests.Timeout", "google.TransportError",
}  # fmt: skip
BUSY = {408, 425, 429}  # and all statuses from 500 on
# obstore's client options, which the environment may set.
CLIENT_OPTIONS = {
    "allow_http", "allow_invalid_certificates", "connect_timeout", "http1_only", "http2_only", "proxy_ca_certificate",
    "proxy_excludes", "proxy_url", "read_timeout", "root_certificate", "timeout", "user_agent",
}  # fmt: skip
DOING = {
    "cat_file": "reading", "pipe_file": "writing", "put_file": "writing", "info": "looking up", "find": "listing",
    "ls": "listing", "rm": "removing", "rm_file": "removing",
}  # fmt: skip


class UnansweredError(StoreError):
    """A server that did not answer a request in any try."""


@dataclass(frozen=True)
class Limits:
    """The ``seconds`` that a server may be silent, and the number of tries per request."""

    seconds: float
    tries: int

    def pause(self, done: int) -> float:
        """Seconds to wait after ``done`` failed tries; random, so that clients do not all retry at once."""
        return min(2.0 ** (done - 1), LONGEST_PAUSE, self.seconds) * random.uniform(0.5, 1)

    def of_a_try(self, size: int) -> float:
        """Seconds that one try may take that sends ``size`` bytes: to connect, to send and to be answered."""
        return self.seconds * (2 + size / PACE)

    def of_all(self, size: int) -> float:
        """Seconds that all tries together may take, pauses included."""
        pauses = sum(min(2.0**done, LONGEST_PAUSE, self.seconds) for done in range(self.tries - 1))
        return self.seconds * (self.tries + size / PACE) + pauses


def limits() -> Limits:
    """The limits that this process's environment sets; UsageError if one of them is not a number above 0."""
    seconds = _given(TIMEOUT, SECONDS, float, "seconds above 0, like 60")
    return Limits(seconds, int(_given(TRIES, ATTEMPTS, int, "a whole number above 0, like 5")))


def _given(name: str, default: float, kind: Callable[[str], float], expected: str) -> float:
    text = os.environ.get(name) or str(default)
    with contextlib.suppress(ValueError):
        value = kind(text)
        if 0 < value < float("inf"):
            return value
    raise UsageError(
        f"the environment variable {name} has a wrong value",
        expected=expected,
        received=text,
        remedy=f"correct {name}, or unset it",
    )


def options_of(filesystem: Any) -> dict[str, Any]:
    """The arguments for an fsspec class, so that it keeps to :func:`limits` and caches no listings."""
    seconds = limits().seconds
    match str(filesystem.__module__).partition(".")[0]:
        case "s3fs":
            times = {"connect_timeout": seconds, "read_timeout": seconds, "retries": {"total_max_attempts": 1}}
            return {"use_listings_cache": False, "config_kwargs": times}
        case "gcsfs":
            aiohttp: Any = importlib.import_module("aiohttp")
            # It logs a traceback for each of its own tries; fusionkit reports the final error once.
            logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
            waits = aiohttp.ClientTimeout(sock_connect=seconds, sock_read=seconds)
            return {"use_listings_cache": False, "requests_timeout": waits}
        case "obstore":  # it refuses options that it does not know, and caches nothing
            span = f"{max(1, round(1000 * seconds))}ms"
            # "timeout" limits a whole request of any size, so it is long; `ask` bounds requests of known size.
            waits = {"connect_timeout": span, "read_timeout": span, "timeout": "1day"}
            return {"client_options": waits | _given_to_obstore(), "retry_config": {"max_retries": 0}}
    return {"use_listings_cache": False}


def _given_to_obstore() -> dict[str, str]:
    """The environment's options for obstore's connections, like ``AWS_ALLOW_HTTP``, which passed options would all
    replace.
    """
    parts = [(*name.lower().partition("_"), value) for name, value in os.environ.items()]
    owners = ("aws", "azure", "google")
    return {option: value for owner, _, option, value in parts if owner in owners and option in CLIENT_OPTIONS}


@dataclass(frozen=True)
class Request:
    """One fsspec operation, like ``cat_file`` or ``info``, with its arguments, and the bytes that it sends.

    If ``size`` is None the answer may have any length, and only the server's silence is bounded.
    """

    operation: str
    given: tuple[Any, ...]
    named: dict[str, Any] = field(default_factory=dict)
    size: int | None = 0


def ask(place: UPath, operation: str, *given: Any, size: int | None = 0, tries: int | None = None, **named: Any) -> Any:
    """The answer to one request about a place; UnansweredError if no try was answered."""
    return ask_all(place, [Request(operation, given, named, size)], tries=tries)[0]


def ask_all(place: UPath, requests: Sequence[Request], *, at_once: int = 1, tries: int | None = None) -> list[Any]:
    """The answers to several requests, ``at_once`` of which run concurrently; the first that fails ends all."""
    filesystem: Any = place.fs
    if not filesystem.async_impl:  # in memory, or a protocol with its own limits
        return [getattr(filesystem, each.operation)(*each.given, **each.named) for each in requests]
    return list(fsspec.asyn.sync(filesystem.loop, _all, filesystem, str(place), requests, at_once, tries))


async def _all(
    filesystem: Any, address: str, requests: Sequence[Request], at_once: int, tries: int | None
) -> list[Any]:
    room = asyncio.Semaphore(at_once)

    async def one(request: Request) -> Any:
        async with room:
            return await answer(filesystem, address, request, tries)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(request)) for request in requests]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def answer(filesystem: Any, address: str, request: Request, tries: int | None = None) -> Any:
    """The answer of an asynchronous filesystem to one request; errors as in :func:`ask`."""
    if hasattr(filesystem, "retries"):
        filesystem.retries = 1  # s3fs has no argument for it, and its retries would multiply ours
    bounds = limits()
    bounds = Limits(bounds.seconds, tries or bounds.tries)
    size, began = request.size or 0, time.monotonic()
    ends = began + bounds.of_all(size)
    for attempt in range(1, bounds.tries + 1):
        until = None if request.size is None else min(bounds.of_a_try(size), ends - time.monotonic())
        try:
            async with asyncio.timeout(until):
                return await getattr(filesystem, f"_{request.operation}")(*request.given, **request.named)
        except Exception as error:
            if not is_passing(error):
                raise
            pause, seconds = bounds.pause(attempt), time.monotonic() - began
            if attempt == bounds.tries or time.monotonic() + pause >= ends:
                raise _unanswered(address, request.operation, error, attempt, seconds, bounds) from error
        await asyncio.sleep(pause)
    raise AssertionError("a request is tried at least once")


def is_passing(error: BaseException) -> bool:
    """Whether the same request may be answered the next time: the connection failed, or the server was busy."""
    kinds = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    # The cause of an answer that breaks off has a status of aiohttp's own, which no server sent.
    if "aiohttp.ClientPayloadError" not in kinds and (status := _status(error)) is not None:
        return status in BUSY or status >= 500
    return isinstance(error, (TimeoutError, ConnectionError)) or bool(kinds & PASSING)


def _status(error: BaseException) -> int | None:
    """The status of the HTTP answer in an error or in its cause."""
    for each in (error, error.__cause__):
        told = getattr(each, "response", None)
        found = told.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(told, dict) else None
        for status in (found, getattr(each, "code", None), getattr(each, "status", None)):
            if str(status).isdecimal():
                return int(str(status))
    return None


def _unanswered(
    address: str, operation: str, error: Exception, tries: int, seconds: float, bounds: Limits
) -> UnansweredError:
    tried = f"{tries} {'try' if tries == 1 else 'tries'} in {seconds:.1f} s"
    return UnansweredError(
        f"cannot use {address}: {DOING[operation]} failed after {tried}",
        received=first_line(error, kind=True),
        remedy=f"{CREDENTIALS}; then run the same command again: finished work is kept; where the server is slow, "
        f"raise {TIMEOUT} (seconds that it may keep silent, {bounds.seconds:g} now) or {TRIES} ({bounds.tries} now)",
    )


@dataclass(frozen=True)
class Bounded:
    """An asynchronous filesystem for Zarr that keeps each read within the limits; errors name the address."""

    filesystem: Any
    address: str
    async_impl = True
    asynchronous = True

    async def _cat_file(self, path: str, **named: Any) -> Any:
        return await answer(self.filesystem, self.address, Request("cat_file", (path,), named, None))


def _event_loops() -> list[Any]:
    """The event loops that requests run in: fsspec's, and Zarr's once it has one."""
    modules = [fsspec.asyn, *filter(None, [sys.modules.get("zarr.core.sync")])]
    return [module.loop[0] for module in modules if module.loop[0] is not None]


def _leave_epoll() -> None:
    """In a forked child (a DataLoader's worker): detach from the parent's event loops without a system call on them.

    Both processes share one epoll. What the child unregisters from it when it drops a loop or a connection is removed
    for the parent too, which then waits for its answers until they time out. asyncio has no public way to detach.
    """
    for loop in _before_fork:
        if hasattr(loop, "_selector"):  # not with uvloop
            loop._selector = type(loop._selector)()


_before_fork: list[Any] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: _before_fork.extend(_event_loops()), after_in_child=_leave_epoll,
                        after_in_parent=_before_fork.clear)  # fmt: skip
