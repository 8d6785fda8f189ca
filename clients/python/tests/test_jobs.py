"""Jobs through a real service, which LEASEHOLD_SERVER names."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import unittest
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from leasehold import Client, Lost  # noqa: E402


@unittest.skipUnless(os.environ.get("LEASEHOLD_SERVER"), "LEASEHOLD_SERVER names no service")
class JobsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.client = Client(owner="one")
        self.queue = self.client.queue(f"test-{uuid.uuid4()}")

    def test_jobs_are_enqueued_worked_and_finished(self) -> None:
        first = self.queue.enqueue({"to": "ann"}, kind="mail", priority=-1)
        rest = self.queue.enqueue_many([b"\xff\x00", "text"], timeout=5)
        self.assertEqual(self.queue.depth()["available"], 3)
        seen = {}
        for job in self.queue.work(wait=1, batch=2):
            self.assertFalse(job.lost)
            seen[job.id] = job
        self.assertEqual(set(seen), {first, *rest})
        self.assertEqual((seen[first].json(), seen[first].kind), ({"to": "ann"}, "mail"))
        self.assertEqual((seen[rest[0]].args, seen[rest[1]].args, seen[rest[1]].timeout), (b"\xff\x00", b"text", 5))
        depth = self.queue.depth()
        self.assertEqual((depth["available"], depth["running"]), (0, 0))

    def test_an_exception_fails_the_attempt_and_the_job_runs_again(self) -> None:
        job_id = self.queue.enqueue("x")
        attempts = []
        for job in self.queue.work(wait=10):
            attempts.append(job.attempt)
            with job:
                if job.attempt == 1:
                    raise ValueError("no luck")
            if job.attempt == 2:
                break
            self.assertEqual(self.queue.get(job_id)["last_error"], "ValueError: no luck")
        self.assertEqual(attempts, [1, 2])

    def test_leaving_the_loop_gives_the_job_back_and_a_late_finish_is_lost(self) -> None:
        job_id = self.queue.enqueue("x")
        for job in self.queue.work(wait=10):
            left = job
            break
        for job in self.queue.work(wait=10):
            self.assertEqual((job.id, job.attempt), (job_id, 1))
            with self.assertRaises(Lost):
                left.finish()
            job.snooze(3600)
        self.assertEqual(self.queue.get(job_id)["state"], "scheduled")
        self.assertEqual(self.queue.cancel(job_id), "done")

    def test_the_job_of_a_killed_worker_runs_again(self) -> None:
        job_id = self.queue.enqueue("x")
        program = (
            "import sys, time; from leasehold import Client\n"
            "for job in Client(owner='victim').queue(sys.argv[1]).work(ttl=1):\n"
            "    print(job.id, flush=True); time.sleep(60)\n"
        )
        arguments = [sys.executable, "-c", program, self.queue.name]
        victim = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent)
        assert victim.stdout is not None
        with victim.stdout:
            self.assertEqual(victim.stdout.readline().strip(), job_id)
        # It is alive for longer than its time to live: renewals keep its job.
        time.sleep(2.5)
        self.assertEqual(self.queue.get(job_id)["worker"], "victim")
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        for job in self.queue.work(wait=15):
            self.assertEqual((job.id, job.attempt), (job_id, 2))
            job.finish()
            break
        else:
            self.fail("it was not run again")
