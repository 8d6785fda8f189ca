"""What goes wrong."""

from __future__ import annotations

from typing import Any, Optional

Json = dict[str, Any]


class LeaseholdError(Exception):
    """Something went wrong. `code` never changes its meaning; the service's documentation lists them all."""

    def __init__(self, code: str, detail: str, status: int = 0, problem: Optional[Json] = None) -> None:
        super().__init__(f"{detail} [{code}]")
        self.code = code
        self.detail = detail
        self.status = status
        self.problem: Json = problem or {}


class Held(LeaseholdError):
    """Another one holds the key."""


class TimedOut(Held):
    """Another one held the key for as long as was waited."""


class Lost(LeaseholdError):
    """The lease is not ours any more. Stop what it protects."""


class Unavailable(LeaseholdError):
    """The service or its store did not answer: try again later."""
