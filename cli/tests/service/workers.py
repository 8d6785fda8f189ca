"""Workers of two services on one store, killed at random, one service killed in between: every job must end, and no
finish may be acknowledged twice.

    workers.py PROGRAM [JOBS [WORKERS [SECONDS]]]
"""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time


def call(port, path, body, timeout=30):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    finally:
        connection.close()


def work(port, path, seed):
    """Claims, runs and finishes jobs until it is killed; writes down what it sends, and what was acknowledged."""
    chance, worker = random.Random(seed), None
    with open(path, "a", buffering=1) as log:
        while True:
            try:
                if worker is None:
                    worker = call(port, "/v1/workers", {"name": f"w{seed}", "ttl_ms": 2000})[1]["worker"]
                status, claimed = call(port, "/v1/queues/q/claim", {"worker": worker, "most": 5, "wait_ms": 2000})
                if status == 404:
                    worker = None
                    continue
                jobs = claimed.get("jobs", [])
                time.sleep(chance.uniform(0.05, 0.5) * len(jobs))
                if jobs:
                    names = [{"id": job["id"], "fence": job["fence"]} for job in jobs]
                    for job in jobs:
                        log.write(f"sent {job['id']}\n")
                    status, answer = call(port, "/v1/queues/q/finish", {"worker": worker, "jobs": names})
                    for result in answer.get("results", []):
                        if result["accepted"]:
                            log.write(f"acknowledged {result['id']}\n")
            except (OSError, http.client.HTTPException, ValueError, KeyError):
                worker = None
                time.sleep(0.2)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(program, store, port):
    command = [program, "serve", "--quiet", "--store", f"file://{store}", "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def depth(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/v1/queues/q")
        seen = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return sum(seen[name] for name in ("available", "scheduled", "retrying", "paused", "running", "burying")), seen


def enqueue(port, jobs):
    lines = '{"args":"x","max_attempts":1000}\n' * jobs
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/queues/q/jobs", lines, {"content-type": "application/x-ndjson"})
    ids = json.loads(connection.getresponse().read())["ids"]
    connection.close()
    return ids


def main(program, jobs=3000, workers=50, seconds=20):
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        ports = [free_port(), free_port()]
        services = [serve(program, store, port) for port in ports]
        running, started = [], 0

        def hire():
            nonlocal started
            started += 1
            log = os.path.join(folder, f"log-{started}")
            arguments = [sys.executable, __file__, "work", str(ports[started % 2]), log, str(started)]
            running.append(subprocess.Popen(arguments))

        try:
            ids = enqueue(ports[0], jobs)
            for _ in range(workers):
                hire()
            began, killed, crashed = time.monotonic(), 0, False
            while time.monotonic() - began < seconds:
                time.sleep(0.25)
                victim = running.pop(chance.randrange(len(running)))
                victim.kill()
                victim.wait()
                killed += 1
                hire()
                if not crashed and time.monotonic() - began > seconds / 3:
                    services[0].send_signal(signal.SIGKILL)
                    services[0].wait()
                    services[0] = serve(program, store, ports[0])
                    crashed = True
            deadline = time.monotonic() + 180
            left, seen = depth(ports[1])
            while left > 0:
                assert time.monotonic() < deadline, f"jobs are left: {seen}"
                time.sleep(1)
                left, seen = depth(ports[1])
            lines = []
            for number in range(1, started + 1):
                path = os.path.join(folder, f"log-{number}")
                if os.path.exists(path):
                    lines += [line.split() for line in open(path)]
            acknowledged = [line[1] for line in lines if line[0] == "acknowledged" and len(line) == 2]
            sent = {line[1] for line in lines if line[0] == "sent" and len(line) == 2}
            twice = len(acknowledged) - len(set(acknowledged))
            assert twice == 0, f"{twice} finishes were acknowledged twice"
            # A worker that is killed between its finish and the answer has finished all the same; a job that nobody has tried
            # to finish was lost.
            lost = set(ids) - sent
            assert not lost, f"{len(lost)} jobs are gone although nobody has finished them"
            assert sent <= set(ids), "a job that was never enqueued"
            took = time.monotonic() - began
            print(f"{jobs} jobs, {workers} workers, {killed} killed, a service killed once: all ended in {took:.0f} s, "
                  f"{len(acknowledged)} finishes acknowledged, none twice")
        finally:
            for process in running + services:
                process.kill()
                process.wait()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        main(sys.argv[1], *[int(argument) for argument in sys.argv[2:]])
