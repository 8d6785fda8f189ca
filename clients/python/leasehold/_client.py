"""Requests to the service, and what goes wrong with them."""

from __future__ import annotations

import base64
import json
import os
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any, Literal, Optional, Union

from ._errors import Held, LeaseholdError, Lost, TimedOut, Unavailable
from ._jobs import Queue
from ._lease import Lease, is_lease, now

Key = Union[str, bytes]
Json = dict[str, Any]

#: How long one request waits inside of the service. Longer waits are made of several.
_SLICE = 20.0
#: How often a request is repeated when the service does not answer.
_RETRIES = 4


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The service never redirects, and urllib would send the token on to wherever it is sent."""

    def redirect_request(self, *args: Any, **named: Any) -> None:
        return None


class Client:
    """A lock service.

    :param url: where it is; `LEASEHOLD_SERVER` if left out.
    :param token: what it asks for; `LEASEHOLD_TOKEN` if left out.
    :param owner: how this process calls itself.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        *,
        token: Optional[str] = None,
        owner: Optional[str] = None,
        namespace: str = "default",
        timeout: float = 30.0,
        tls: Optional[ssl.SSLContext] = None,
    ) -> None:
        self.url = (url or os.environ.get("LEASEHOLD_SERVER") or "http://127.0.0.1:7420").rstrip("/")
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}"
        self.namespace = namespace
        self.timeout = timeout
        self._token = token or os.environ.get("LEASEHOLD_TOKEN")
        # The service is called directly: a proxy that buffers would turn waiting into silence.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirects()]
        if tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=tls))
        self._opener = urllib.request.build_opener(*handlers)

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    # Leases

    def lock(self, key: Key, *, ttl: float = 30.0, wait: Optional[float] = None, note: Optional[str] = None) -> Lease:
        """Acquires a lease and keeps it alive until it is released: for `with client.lock("key") as lease:`.

        :param wait: how long to wait for it, in seconds; for ever if left out, not at all if 0.
        """
        lease = self.acquire(key, ttl=ttl, wait=wait, note=note)
        lease.keep_alive()
        return lease

    def acquire(
        self,
        key: Key,
        *,
        ttl: float = 30.0,
        wait: Optional[float] = 0.0,
        note: Optional[str] = None,
        idempotency_key: Optional[str] = None,
    ) -> Lease:
        """Acquires a lease, which is not kept alive.

        Lost answers leave nothing behind: the request is repeated under the same idempotency key.
        """
        body = {**self._named(key), "owner": self.owner, "ttl_ms": round(ttl * 1000)}
        if note is not None:
            body["note"] = note
        return self._acquire("/v1/acquire", key, body, wait, idempotency_key)

    def campaign(
        self, name: str, *, ttl: float = 30.0, wait: Optional[float] = None, note: Optional[str] = None
    ) -> Lease:
        """Becomes the leader of an election, and stays it until the lease is released or lost."""
        body: Json = {"name": name, "candidate": self.owner, "ttl_ms": round(ttl * 1000), "namespace": self.namespace}
        if note is not None:
            body["note"] = note
        lease = self._acquire("/v1/elections/campaign", name, body, wait, None)
        lease.keep_alive()
        return lease

    def _acquire(self, path: str, key: Key, body: Json, wait: Optional[float], idempotency_key: Optional[str]) -> Lease:
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        end = None if wait is None else now() + wait
        while True:
            left = _SLICE if end is None else max(0.0, min(_SLICE, end - now()))
            body["wait_ms"] = round(left * 1000)
            try:
                answer, sent = self._call_when("POST", path, body, headers, longer=left)
            except Held as held:
                # The service may have waited for less than it was asked to.
                if end is not None and now() >= end:
                    if wait:
                        raise TimedOut("timed_out", held.detail, held.status, held.problem) from None
                    raise
                continue
            return Lease(self, key, self._lease_in(answer), sent)

    def renew(
        self, key: Key, lease_id: str, *, ttl: Optional[float] = None, within: Optional[float] = None
    ) -> Json:
        """Renews a lease by its id. With `within` it is tried once, for so many seconds."""
        body = {**self._named(key), "lease_id": lease_id}
        if ttl is not None:
            body["ttl_ms"] = round(ttl * 1000)
        answer = self._lease_in(self._call("POST", "/v1/renew", body, within=within))
        if answer["lease_id"] != lease_id:
            raise Unavailable("no_answer", f"{self.url} answered with another lease: is it the lock service?")
        return answer

    def release(self, key: Key, lease_id: str) -> None:
        """Gives a lease back by its id. Giving back what one does not have is fine."""
        self._call("POST", "/v1/release", {**self._named(key), "lease_id": lease_id})

    def get(self, key: Key) -> Json:
        """What there is on a key."""
        return self._call("GET", "/v1/lease?" + self._query(key=key))

    def list(self, prefix: Key = "", *, held: bool = False) -> Iterator[Json]:
        """All keys that begin with something."""
        after: Optional[str] = None
        while True:
            extra: dict[str, Key] = {"prefix": prefix, "held": "true" if held else "false"}
            if after is not None:
                extra["after"] = after
            page = self._call("GET", "/v1/leases?" + self._query(**extra))
            yield from page["keys"]
            after = page["next"]
            if after is None:
                return

    def watch(self, key: Key) -> Iterator[Json]:
        """What there is on a key, and then every change of it, until the service ends."""
        request = self._request("GET", "/v1/watch?" + self._query(key=key), None, {})
        with self._open(request, self.timeout) as answer:
            event = ""
            for raw in answer:
                line = raw.decode().rstrip("\n")
                if line.startswith("event:"):
                    event = line[6:].strip()
                elif line.startswith("data:") and event == "status":
                    yield json.loads(line[5:])

    def leader(self, name: str) -> Optional[Json]:
        """Who leads an election."""
        leader: Optional[Json] = self._call("GET", "/v1/elections/leader?" + self._query(name=name))["leader"]
        return leader

    # Jobs

    def queue(self, name: str) -> Queue:
        """A queue of jobs."""
        return Queue(self, name)

    # Decisions

    def begin(self) -> str:
        """A new transaction."""
        txn: str = self._call("POST", "/v1/txns")["txn"]
        return txn

    def decide(self, txn: str, decision: Literal["commit", "abort"]) -> str:
        """Decides a transaction, unless that was done already. Returns what was decided."""
        body = {"decision": decision, "by": self.owner}
        decided: str = self._call("POST", f"/v1/txns/{txn}/decide", body)["decision"]
        return decided

    def decision(self, txn: str) -> str:
        """What was decided: undecided, committed, aborted or forgotten. Forgotten does not mean aborted."""
        answer: str = self._call("GET", f"/v1/txns/{txn}")["answer"]
        return answer

    # Requests

    def _named(self, key: Key) -> Json:
        name: Json = {"key": key} if isinstance(key, str) else {"key_b64": base64.b64encode(key).decode()}
        return {**name, "namespace": self.namespace}

    def _query(self, **values: Key) -> str:
        return urllib.parse.urlencode({"namespace": self.namespace, **values})

    def _request(
        self, method: str, path: str, body: Union[Json, bytes, None], headers: dict[str, str]
    ) -> urllib.request.Request:
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        if isinstance(body, bytes):
            request.data = body
            request.add_header("Content-Type", "application/x-ndjson")
        elif body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        return request

    def _open(self, request: urllib.request.Request, timeout: float) -> Any:
        try:
            return self._opener.open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            with error:
                if 300 <= error.code < 400:
                    to = error.headers.get("Location")
                    detail = f"{self.url} redirects to {to}, which is not followed: give the address of the service itself"
                    raise LeaseholdError("redirected", detail, error.code) from None
                raise _problem(error.code, error.read()) from None

    def _lease_in(self, answer: Json) -> Json:
        if not is_lease(answer):
            raise Unavailable("no_answer", f"{self.url} answered, but not with a lease: is it the lock service?")
        return answer

    def _call(
        self,
        method: str,
        path: str,
        body: Union[Json, bytes, None] = None,
        headers: Optional[dict[str, str]] = None,
        longer: float = 0.0,
        within: Optional[float] = None,
    ) -> Json:
        """One request, repeated while there is no answer: every one of them is safe to repeat."""
        return self._call_when(method, path, body, headers, longer, within)[0]

    def _call_when(
        self,
        method: str,
        path: str,
        body: Union[Json, bytes, None] = None,
        headers: Optional[dict[str, str]] = None,
        longer: float = 0.0,
        within: Optional[float] = None,
    ) -> tuple[Json, float]:
        """The same, with when the request was sent that was answered."""
        timeout = self.timeout + longer if within is None else within
        retries = _RETRIES if within is None else 0
        for attempt in range(retries + 1):
            sent = now()
            try:
                with self._open(self._request(method, path, body, headers or {}), timeout) as answer:
                    parsed: Json = {} if answer.status == 204 else json.load(answer)
                    return parsed, sent
            except (OSError, HTTPException, ValueError) as error:
                failure = Unavailable("no_answer", f"{self.url} did not answer: {error}")
            except Unavailable as error:
                failure = error
            if attempt < retries:
                time.sleep(0.1 * 2**attempt)
        raise failure


def _problem(status: int, body: bytes) -> LeaseholdError:
    try:
        problem: Json = json.loads(body)
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        return LeaseholdError("http_error", f"the answer was {status}", status)
    kinds: dict[str, type[LeaseholdError]] = {"held": Held, "timed_out": TimedOut, "lost": Lost}
    kind = kinds.get(code, Unavailable if status in (429, 503) else LeaseholdError)
    return kind(code, detail, status, problem)
