"""The client against a real service, which LEASEHOLD_SERVER names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import unittest
import uuid
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))

from leasehold import Client, Held, Lease, LeaseholdError, Lost, TimedOut, Unavailable  # noqa: E402
from leasehold._lease import now  # noqa: E402


def until(condition, what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"it never came to be that {what}")
        time.sleep(0.02)


@unittest.skipUnless(os.environ.get("LEASEHOLD_SERVER"), "LEASEHOLD_SERVER names no service")
class ClientTest(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Client(owner="one")
        self.other = Client(owner="other")
        self.key = f"test/{uuid.uuid4()}"

    def test_a_lock_is_held_kept_alive_and_given_back(self) -> None:
        with self.client.lock(self.key, ttl=1.0) as lease:
            self.assertEqual(self.client.get(self.key)["holder"]["owner"], "one")
            granted = lease.time_left()
            until(lambda: lease.time_left() > granted - 0.2 and lease._deadline > now() + 0.9, "it was renewed")
            with self.assertRaises(Held):
                self.other.acquire(self.key)
            self.assertEqual(lease.check(), lease.fence)
        self.assertFalse(lease.is_valid())
        self.assertIsNone(self.client.get(self.key)["holder"])
        with self.assertRaises(Lost):
            lease.check()

    def test_fences_rise_and_waiting_ends(self) -> None:
        first = self.client.acquire(self.key, ttl=30)
        with self.assertRaises(TimedOut):
            self.other.lock(self.key, wait=0.3)
        threading.Timer(0.3, first.release).start()
        with self.other.lock(self.key, wait=20) as second:
            self.assertGreater(second.fence, first.fence)

    def test_a_lease_that_was_waited_for_longer_than_it_lasts_is_good(self) -> None:
        self.client.acquire(self.key, ttl=3)
        with self.other.lock(self.key, ttl=2, wait=30) as lease:
            self.assertTrue(lease.is_valid())

    def test_time_in_which_the_machine_is_suspended_counts(self) -> None:
        lease = self.client.lock(self.key, ttl=30)
        with mock.patch("leasehold._lease.now", lambda: now() + 60):
            self.assertFalse(lease.is_valid())
            with self.assertRaises(Lost):
                lease.check()

    def test_a_lease_that_is_taken_away_is_lost_and_says_so(self) -> None:
        told = threading.Event()
        lease = self.client.lock(self.key, ttl=1.5)
        lease.on_lost(lambda lost: told.set())
        self.other.release(self.key, lease.lease_id)
        self.assertTrue(told.wait(20))
        self.assertFalse(lease.is_valid())
        lease.release()

    def test_a_repeated_request_gets_its_own_lease(self) -> None:
        one = self.client.acquire(self.key, idempotency_key="the same")
        two = self.client.acquire(self.key, idempotency_key="the same")
        self.assertEqual((one.lease_id, one.fence), (two.lease_id, two.fence))
        one.release()

    def test_keys_of_bytes_lists_and_watching(self) -> None:
        key = self.key.encode() + b"\xff\x00"
        changes = iter(self.client.watch(key))
        self.assertIsNone(next(changes)["holder"])
        with self.client.lock(key, note="a word") as lease:
            seen = next(changes)
            self.assertEqual((seen["holder"]["fence"], seen["holder"]["note"]), (lease.fence, "a word"))
            self.assertEqual(len(list(self.client.list(self.key, held=True))), 1)

    def test_an_election_and_a_decision(self) -> None:
        with self.client.campaign(self.key, note="10.0.0.1") as lease:
            leader = self.other.leader(self.key)
            assert leader is not None
            self.assertEqual((leader["owner"], leader["fence"]), ("one", lease.fence))
        self.assertIsNone(self.other.leader(self.key))
        txn = self.client.begin()
        self.assertEqual(self.client.decision(txn), "undecided")
        self.assertEqual(self.client.decide(txn, "commit"), "commit")
        self.assertEqual(self.other.decide(txn, "abort"), "commit")
        self.assertEqual(self.client.decision(txn), "committed")

    def test_mistakes_are_told_apart(self) -> None:
        with self.assertRaises(LeaseholdError) as wrong:
            self.client.acquire("")
        self.assertEqual((wrong.exception.code, wrong.exception.status), ("invalid_request", 400))
        with self.assertRaises(Unavailable):
            Client("http://127.0.0.1:9").get("key")

    def test_a_process_that_dies_loses_its_lease_to_the_next(self) -> None:
        holds = f"from leasehold import Client\nClient(owner='dead').lock({self.key!r}, ttl=1)\nprint('held', flush=True)\ninput()"
        child = subprocess.Popen(
            [sys.executable, "-c", holds],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        )
        assert child.stdout is not None and child.stdin is not None
        self.assertEqual(child.stdout.readline(), b"held\n")
        child.send_signal(signal.SIGKILL)
        child.wait()
        with self.other.lock(self.key, wait=20) as lease:
            self.assertIsInstance(lease, Lease)
        child.stdout.close()
        child.stdin.close()


if __name__ == "__main__":
    unittest.main()
