"""The client against a server that answers wrongly: a redirect, a captive portal, silence."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import unittest
import unittest.mock
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Optional

sys.path.insert(0, str(Path(__file__).parent.parent))

from leasehold import Client, Lease, LeaseholdError, Lost, Unavailable  # noqa: E402

Answer = tuple[int, dict[str, str], Any]


def granted(**changes: Any) -> Answer:
    lease = {"lease_id": "one", "fence": 7, "owner": "me", "ttl_ms": 1500, "expires_in_ms": 1500, "waited_ms": 0}
    return 200, {}, {**lease, **changes}


def without(name: str) -> Answer:
    status, headers, body = granted()
    return status, headers, {field: value for field, value in body.items() if field != name}


class Server:
    """Answers every path as it is told to, and keeps the headers that it was sent."""

    def __init__(self) -> None:
        self.answers: dict[str, Callable[[], Answer]] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                server.seen.append((self.path, dict(self.headers.items())))
                status, headers, body = server.answers[self.path]()
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(raw))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()

    def paths(self) -> list[str]:
        return [path for path, _ in self.seen]

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


class Told:
    """Counts how often it was told of a loss."""

    def __init__(self) -> None:
        self.times = 0
        self.event = threading.Event()

    def __call__(self, lease: Lease) -> None:
        self.times += 1
        self.event.set()


class WrongAnswers(unittest.TestCase):
    def setUp(self) -> None:
        self.server = self.serve()
        self.server.answers["/v1/acquire"] = granted
        self.server.answers["/v1/renew"] = granted
        self.server.answers["/v1/release"] = lambda: (200, {}, {"released": True})
        self.client = Client(self.server.url, token="a-secret", owner="me")

    def serve(self) -> Server:
        server = Server()
        self.addCleanup(server.close)
        return server

    def lock(self) -> Lease:
        lease = self.client.lock("key", ttl=1.5)
        self.addCleanup(lease.release)
        return lease

    def wait_until_renewed(self, times: int = 1) -> None:
        deadline = time.monotonic() + 20
        while self.server.paths().count("/v1/renew") < times:
            self.assertLess(time.monotonic(), deadline, "it was never renewed")
            time.sleep(0.01)

    def test_a_redirect_is_refused_and_the_token_stays_here(self) -> None:
        stranger = self.serve()
        stranger.answers["/v1/acquire"] = granted
        stranger.answers["/v1/lease"] = granted
        for status in (301, 302, 303, 307, 308):
            self.server.answers["/v1/acquire"] = lambda: (status, {"Location": stranger.url + "/v1/acquire"}, b"")
            with self.assertRaises(LeaseholdError) as refused:
                self.client.acquire("key")
            self.assertEqual((refused.exception.code, refused.exception.status), ("redirected", status))
            self.assertIn(stranger.url, refused.exception.detail)
            self.assertNotIn("a-secret", str(refused.exception))
        self.assertEqual(stranger.seen, [])

    def test_an_answer_that_is_no_lease_is_no_lease(self) -> None:
        pages: list[Any] = [b"<html>please log in</html>", [], "yes", None]
        wrong: list[Answer] = [without("expires_in_ms"), without("lease_id"), without("fence"), without("ttl_ms")]
        wrong += [granted(expires_in_ms="soon"), granted(expires_in_ms=True), granted(fence=None)]
        for answer in wrong + [(200, {}, page) for page in pages]:
            self.server.answers["/v1/acquire"] = lambda: answer
            with self.subTest(answer=answer), self.assertRaises(Unavailable):
                self.client.acquire("key")

    def test_a_renewal_that_is_no_lease_does_not_end_the_keeping(self) -> None:
        renewals: list[Answer] = [without("expires_in_ms"), granted(lease_id="another"), (200, {}, [])]
        for wrong in renewals:
            self.server.seen.clear()
            answers = iter([wrong])
            self.server.answers["/v1/renew"] = lambda: next(answers, granted())
            lease, told = self.lock(), Told()
            lease.on_lost(told)
            # By then it would have ended without the renewals that came after the wrong one.
            self.wait_until_renewed(4)
            self.assertTrue(lease.is_valid(), wrong)
            self.assertEqual(told.times, 0)
            lease.release()

    def test_a_lease_whose_renewals_are_all_wrong_is_reported_lost_when_its_time_is_over(self) -> None:
        self.server.answers["/v1/renew"] = lambda: without("expires_in_ms")
        lease, told = self.lock(), Told()
        lease.on_lost(told)
        self.assertTrue(lease.is_valid())
        self.assertTrue(told.event.wait(20))
        self.assertFalse(lease.is_valid())
        with self.assertRaises(Lost):
            lease.check()
        self.assertEqual(told.times, 1)

    def test_an_unforeseen_error_does_not_end_the_keeping(self) -> None:
        lease, told = self.lock(), Told()
        lease.on_lost(told)
        with unittest.mock.patch.object(Client, "renew", side_effect=RuntimeError("unforeseen")):
            with self.assertLogs("leasehold", logging.ERROR):
                self.assertTrue(told.event.wait(20))
        self.assertEqual(told.times, 1)

    def test_who_asks_to_be_told_after_the_loss_is_told_at_once(self) -> None:
        self.server.answers["/v1/renew"] = lambda: (409, {}, {"code": "lost", "detail": "it has ended"})
        lease, early, late = self.lock(), Told(), Told()
        lease.on_lost(early)
        self.assertTrue(early.event.wait(20))
        lease.on_lost(late)
        self.assertEqual((early.times, late.times), (1, 1))
        with self.assertRaises(Lost):
            lease.renew()
        self.assertEqual((early.times, late.times), (1, 1), "a loss is reported once")

    def test_one_who_fails_to_be_told_does_not_keep_the_loss_from_the_others(self) -> None:
        self.server.answers["/v1/renew"] = lambda: (409, {}, {"code": "lost", "detail": "it has ended"})
        lease, told = self.lock(), Told()

        def fails(lease: Lease) -> None:
            raise RuntimeError("not now")

        with self.assertLogs("leasehold", logging.ERROR) as logged:
            lease.on_lost(fails)
            lease.on_lost(told)
            self.assertTrue(told.event.wait(20))
        self.assertEqual(len(logged.records), 1)

    def test_a_lease_that_nobody_keeps_alive_is_reported_when_its_time_is_over(self) -> None:
        lease, told = self.client.acquire("key", ttl=1.5), Told()
        lease.on_lost(told)
        self.assertTrue(told.event.wait(20))
        self.assertFalse(lease.is_valid())
        self.assertNotIn("/v1/renew", self.server.paths())
        with self.assertRaises(Lost):
            lease.renew()
        self.assertEqual(told.times, 1)
        lease.release()

    def test_a_lease_that_is_watched_first_and_kept_alive_later_is_kept(self) -> None:
        lease, told = self.client.acquire("key", ttl=1.5), Told()
        self.addCleanup(lease.release)
        lease.on_lost(told)
        lease.keep_alive()
        self.wait_until_renewed(4)
        self.assertTrue(lease.is_valid())
        self.assertEqual(told.times, 0)

    def test_a_lease_that_was_given_back_is_not_reported(self) -> None:
        lease, told = self.lock(), Told()
        lease.on_lost(told)
        lease.release()
        late = Told()
        lease.on_lost(late)
        self.assertFalse(lease.is_valid())
        self.assertEqual((told.times, late.times), (0, 0))

    def test_a_belief_that_was_found_over_stays_over(self) -> None:
        lease: Optional[Lease] = self.client.acquire("key", ttl=1.5)
        assert lease is not None
        with unittest.mock.patch("leasehold._lease.now", lambda: time.monotonic() + 1e9):
            self.assertFalse(lease.is_valid())
        self.assertFalse(lease.is_valid(), "the clock went on, and went back")
        lease.release()


if __name__ == "__main__":
    unittest.main()
