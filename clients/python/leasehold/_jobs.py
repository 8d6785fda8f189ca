"""Jobs: enqueue them, and work on them."""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
import uuid
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional, Union

from ._errors import LeaseholdError, Lost
from ._lease import now

if TYPE_CHECKING:
    from ._client import Client

Json = dict[str, Any]
#: What a job carries: text and bytes as they are, anything else as JSON.
Args = Union[str, bytes, Json, list[Any]]

#: How long one claim waits inside of the service.
_WAIT = 20.0


def _new(args: Args, **options: Any) -> Json:
    if isinstance(args, str):
        job: Json = {"args": args}
    elif isinstance(args, bytes):
        job = {"args_b64": base64.b64encode(args).decode()}
    else:
        job = {"args_json": args}
    for name in ("delay", "timeout"):
        if options.get(name) is not None:
            field = "due_in_ms" if name == "delay" else "timeout_ms"
            job[field] = round(options.pop(name) * 1000)
    if options.get("at") is not None:
        job["due_ms"] = round(options.pop("at") * 1000)
    job.update({name: value for name, value in options.items() if value is not None})
    return job


class Queue:
    """A queue of jobs. Made by `client.queue("emails")`."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    def _path(self, verb: str = "") -> str:
        query = urllib.parse.urlencode({"namespace": self.client.namespace})
        return f"/v1/queues/{urllib.parse.quote(self.name, safe='')}{verb}?{query}"

    def enqueue(self, args: Args, *, idempotency_key: Optional[str] = None, **options: Any) -> str:
        """Enqueues a job, which is durable then, and returns its id.

        Lost answers enqueue nothing twice: the request is repeated under the same idempotency key.

        :param options: `kind`, `priority`, `delay` (seconds), `at` (seconds since 1970), `key`, `unique_key`, `tenant`,
            `caller_id`, `max_attempts`, `timeout` (seconds).
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        ids: list[str] = self.client._call("POST", self._path("/jobs"), _new(args, **options), headers)["ids"]
        return ids[0]

    def enqueue_many(
        self, many: Iterable[Args], *, idempotency_key: Optional[str] = None, **options: Any
    ) -> list[str]:
        """Enqueues many jobs in one request, up to 10,000; their ids come in their order."""
        lines = "".join(json.dumps(_new(args, **options)) + "\n" for args in many)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        ids: list[str] = self.client._call("POST", self._path("/jobs"), lines.encode(), headers)["ids"]
        return ids

    def get(self, job: str) -> Json:
        """What is known of a job."""
        return self.client._call("GET", self._path(f"/jobs/{job}"))

    def cancel(self, job: str) -> str:
        """Cancels a job: `done`, `asked` or `already_ended`."""
        cancelled: str = self.client._call("POST", self._path(f"/jobs/{job}/cancel"), {})["cancelled"]
        return cancelled

    def depth(self) -> Json:
        """How many jobs there are, by what they are doing."""
        return self.client._call("GET", self._path())

    def work(
        self, *, batch: int = 1, ttl: float = 30.0, wait: Optional[float] = None, stop: Optional[threading.Event] = None
    ) -> Iterator[Job]:
        """Jobs, one after the other: for `for job in queue.work():`.

        A job that was not answered for is finished when the next one is asked for. If the loop is left, by `break` or by an
        exception, it goes back to the queue; `with job:` says instead that it has failed.

        :param batch: how many jobs to claim at once.
        :param ttl: for how long this process may be silent before its jobs are given to others.
        :param wait: how long to wait for a job before the loop ends, in seconds; for ever if left out.
        :param stop: ends the loop when it is set.
        """
        worker = _Worker(self.client, ttl)
        try:
            heard = now()
            while stop is None or not stop.is_set():
                left = _WAIT if wait is None else max(0.0, min(_WAIT, heard + wait - now()))
                jobs = worker.claim(self, batch, left)
                for job in jobs:
                    if stop is not None and stop.is_set():
                        return
                    yield job
                    if not job.answered:
                        job.finish()
                if jobs:
                    heard = now()
                elif wait is not None and now() - heard >= wait:
                    return
        finally:
            worker.leave()


class Job:
    """One attempt at a job. Hand its fence to whatever it changes."""

    def __init__(self, queue: Queue, worker: _Worker, claimed: Json) -> None:
        self._queue = queue
        self._worker = worker
        self.id: str = claimed["id"]
        self.fence: int = claimed["fence"]
        self.attempt: int = claimed["attempt"]
        self.kind: Optional[str] = claimed.get("kind")
        self.caller_id: Optional[str] = claimed.get("caller_id")
        self.timeout: Optional[float] = claimed["timeout_ms"] / 1000 if claimed.get("timeout_ms") else None
        text: Optional[str] = claimed.get("args")
        self.args: bytes = text.encode() if text is not None else base64.b64decode(claimed.get("args_b64", ""))
        self.parts = {name: base64.b64decode(part) for name, part in claimed.get("parts_b64", {}).items()}
        #: Whether somebody has said how it ended.
        self.answered = False

    def __repr__(self) -> str:
        return f"Job({self.id!r}, attempt={self.attempt})"

    def json(self) -> Any:
        """What it carries, read as JSON."""
        return json.loads(self.args)

    @property
    def lost(self) -> bool:
        """Whether it may have been given to somebody else: stop what you do for it."""
        return self._worker.lost(self)

    def finish(self) -> None:
        """It is done. Raises `Lost` if it was given to somebody else meanwhile."""
        self._end("finish")

    def fail(self, error: str, *, for_good: bool = False) -> None:
        """The attempt has failed: the queue decides when it runs again. `for_good`: it goes to the dead letters."""
        self._end("fail", error=error[:4096], for_good=for_good)

    def snooze(self, seconds: float) -> None:
        """It runs again so much later, and no attempt is used."""
        self._end("snooze", snooze_ms=round(seconds * 1000))

    def release(self) -> None:
        """It goes back as it was, and no attempt is used."""
        self._end("release")

    def _end(self, how: str, **more: Any) -> None:
        self.answered = True
        body = {"worker": self._worker.id, "jobs": [self._name()], **more}
        try:
            self._queue.client._call("POST", self._queue._path(f"/{how}"), body)
        except LeaseholdError as error:
            if error.code == "stale_attempt":
                raise Lost(error.code, error.detail, error.status, error.problem) from None
            raise
        finally:
            self._worker.forget(self)

    def _name(self) -> Json:
        return {"id": self.id, "fence": self.fence}

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], where: Optional[TracebackType]
    ) -> bool:
        if self.answered:
            return False
        if error is None:
            self.finish()
        elif isinstance(error, Exception):
            self.fail(f"{type(error).__name__}: {error}")
            # It was told to the queue.
            return True
        return False


class _Worker:
    """What this process has in hand, kept by one renewal for all of it."""

    def __init__(self, client: Client, ttl: float) -> None:
        self._client, self._ttl = client, ttl
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._jobs: dict[tuple[str, int], Job] = {}
        self._until = 0.0
        self._gone: set[tuple[str, int]] = set()
        self.id = ""
        self._register()
        self._thread = threading.Thread(target=self._keep, name="leasehold-worker", daemon=True)
        self._thread.start()

    def _register(self) -> None:
        body = {"name": self._client.owner, "ttl_ms": round(self._ttl * 1000)}
        answer, sent = self._client._call_when("POST", "/v1/workers", body)
        self.id, self._until = answer["worker"], sent + answer["expires_in_ms"] / 1000

    def claim(self, queue: Queue, most: int, wait: float) -> list[Job]:
        body = {"worker": self.id, "most": most, "wait_ms": round(wait * 1000)}
        try:
            answer, sent = self._client._call_when("POST", queue._path("/claim"), body, longer=wait)
        except LeaseholdError as error:
            if error.code != "unknown_worker":
                raise
            self._register()
            return []
        jobs = [Job(queue, self, claimed) for claimed in answer["jobs"]]
        with self._lock:
            self._until = max(self._until, sent + (answer["waited_ms"] + answer["expires_in_ms"]) / 1000)
            self._jobs.update({(job.id, job.fence): job for job in jobs})
        return jobs

    def lost(self, job: Job) -> bool:
        with self._lock:
            return now() >= self._until or (job.id, job.fence) in self._gone

    def forget(self, job: Job) -> None:
        with self._lock:
            self._jobs.pop((job.id, job.fence), None)
            self._gone.discard((job.id, job.fence))

    def _keep(self) -> None:
        while not self._stop.wait(self._ttl / 3):
            with self._lock:
                known = {"jobs": [job._name() for job in self._jobs.values()]}
            try:
                answer, sent = self._client._call_when(
                    "POST", f"/v1/workers/{self.id}/renew", known, within=max(1.0, self._ttl / 3)
                )
            except LeaseholdError as error:
                if error.code == "unknown_worker":
                    with self._lock:
                        self._gone.update(self._jobs)
                continue
            held = {(job["id"], job["fence"]) for job in answer["jobs"] if not job["lost"]}
            with self._lock:
                self._until = max(self._until, sent + answer["expires_in_ms"] / 1000)
                named = {(job["id"], job["fence"]) for job in known["jobs"]}
                self._gone.update(key for key in self._jobs if key in named and key not in held)

    def leave(self) -> None:
        self._stop.set()
        try:
            self._client._call("DELETE", f"/v1/workers/{self.id}")
        except LeaseholdError:
            # What is left in hand is given to others when this worker has been silent for long enough.
            pass
