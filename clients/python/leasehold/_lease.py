"""A lease that this process holds."""

from __future__ import annotations

import logging
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

if TYPE_CHECKING:
    from ._client import Client


_log = logging.getLogger("leasehold")


def now() -> float:
    """Seconds that also pass while the machine is suspended, where the system counts those: others do not wait for us."""
    boottime: Optional[int] = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


def lasts(answer: dict[str, Any]) -> float:
    """How long a lease lasts, counted from before it was asked for: the request arrived after that."""
    milliseconds: int = answer["expires_in_ms"] + answer.get("waited_ms", 0)
    return milliseconds / 1000


def is_lease(answer: object) -> bool:
    """Whether the answer has what every lease has. A captive portal or a proxy may answer in place of the service."""

    def is_number(name: str) -> bool:
        value = answer.get(name, 0 if name == "waited_ms" else None) if isinstance(answer, dict) else None
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0

    def is_text(name: str) -> bool:
        return isinstance(answer, dict) and isinstance(answer.get(name), str)

    numbers = ("fence", "ttl_ms", "expires_in_ms", "waited_ms")
    return all(map(is_text, ("lease_id", "owner"))) and all(map(is_number, numbers))


class Lease:
    """A lease, believed in only for as long as this process's own clock says, counted from before it was asked for."""

    def __init__(self, client: "Client", key: Union[str, bytes], answer: dict[str, Any], sent: float) -> None:
        self._client = client
        self.key = key
        self.lease_id: str = answer["lease_id"]
        #: Hand this to what the lease protects with every write.
        self.fence: int = answer["fence"]
        self.owner: str = answer["owner"]
        self.ttl: float = answer["ttl_ms"] / 1000
        self._deadline = sent + lasts(answer)
        self._lost = threading.Event()
        self._closed = threading.Event()
        #: Guards what follows, and wakes the keeper.
        self._changed = threading.Condition()
        self._keeper: Optional[threading.Thread] = None
        self._renews = False
        self._callbacks: list[Callable[[Lease], None]] = []

    def __repr__(self) -> str:
        return f"Lease({self.key!r}, fence={self.fence}, {'valid' if self._is_believed() else 'not valid'})"

    def is_valid(self) -> bool:
        """Whether this process may still believe in it. Looks at the clock, not at the network."""
        if self._is_believed():
            return True
        # Found to be over once, it is over for good.
        self._lose()
        return False

    def _is_believed(self) -> bool:
        return not self._lost.is_set() and not self._closed.is_set() and now() < self._deadline

    def time_left(self) -> float:
        """For how many seconds, if it is not paused in between."""
        return max(0.0, self._deadline - now()) if self.is_valid() else 0.0

    def check(self) -> int:
        """The fence; raises `Lost` if the lease is not ours any more."""
        from ._errors import Lost

        if not self.is_valid():
            raise Lost("lost", f"the lease on {self.key!r} is not ours any more: stop what it protects")
        return self.fence

    def on_lost(self, tell: Callable[["Lease"], None]) -> None:
        """Calls this once when the lease is lost, or has ended without being kept alive; at once if it is lost already.

        It is called from the thread that finds out, which is the lease's own if nobody else does. A lease that was
        released is not lost.
        """
        with self._changed:
            if not self._lost.is_set():
                self._callbacks.append(tell)
                return self._start()
        self._tell(tell)

    def keep_alive(self) -> None:
        """Renews it at a third of its time to live, in a thread of its own, until it is released or lost."""
        with self._changed:
            self._renews = True
            self._changed.notify_all()
            self._start()

    def _start(self) -> None:
        if self._keeper is None and not self._closed.is_set():
            self._keeper = threading.Thread(target=self._keep, name=f"leasehold {self.key!r}", daemon=True)
            self._keeper.start()

    def renew(self) -> None:
        """Renews it, trying once; raises `Lost` if it is gone."""
        from ._errors import Lost

        self.check()
        sent = now()
        try:
            answer = self._client.renew(self.key, self.lease_id, within=min(self._client.timeout, self.ttl / 3))
        except Lost:
            self._lose()
            raise
        self._deadline = sent + lasts(answer)

    def release(self) -> None:
        """Gives it back. On an error it ends by itself."""
        if self._closed.is_set():
            return
        with self._changed:
            self._closed.set()
            self._changed.notify_all()
        if self._keeper is not None and self._keeper is not threading.current_thread():
            # A renewal that is under way must not come after the release.
            self._keeper.join()
        self._client.release(self.key, self.lease_id)

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        from ._errors import LeaseholdError

        try:
            self.release()
        except LeaseholdError:
            # It ends by itself; what went wrong inside matters more than that.
            if error is None and not self._lost.is_set():
                raise

    def _lose(self) -> None:
        """Tells everybody who asked, once."""
        with self._changed:
            if self._lost.is_set() or self._closed.is_set():
                return
            self._lost.set()
            self._changed.notify_all()
            callbacks = list(self._callbacks)
        for tell in callbacks:
            self._tell(tell)

    def _tell(self, tell: Callable[["Lease"], None]) -> None:
        try:
            tell(self)
        except Exception:
            # One who fails to be told must not keep the loss from the others.
            _log.exception("telling of the loss of the lease on %r failed", self.key)

    def _keep(self) -> None:
        from ._errors import LeaseholdError, Lost

        # The answer may have been long under way.
        due = now() + min(self.ttl / 3, (self._deadline - now()) / 2)
        while self._rest(due):
            if now() >= self._deadline:
                return self._lose()
            try:
                self.renew()
                due = now() + self.ttl / 3
                continue
            except Lost:
                return
            except LeaseholdError:
                pass
            except Exception:
                # Whatever it was, it must not end the keeping: the lease would end and nobody would be told.
                _log.exception("renewing the lease on %r failed", self.key)
            # The old deadline stands; ask again soon.
            due = now() + self.ttl / 12

    def _rest(self, due: float) -> bool:
        """Waits until the lease is over, or due to be renewed if it is to be; whether there is anything left to do."""
        with self._changed:
            while not self._closed.is_set() and not self._lost.is_set():
                left = min(due, self._deadline) - now() if self._renews else self._deadline - now()
                if left <= 0:
                    return True
                # In parts: a thread's wait does not count the time of a suspended machine.
                self._changed.wait(min(1.0, left))
            return False
