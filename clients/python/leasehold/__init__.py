"""A client for the leasehold lock service, with nothing but the standard library.

    from leasehold import Client

    client = Client("http://127.0.0.1:7420")
    with client.lock("orders/42", wait=10) as lease:
        write(order, fence=lease.fence)   # and let the other side refuse lower fences than it has seen
        lease.check()                     # raises Lost when it is not ours any more

    queue = client.queue("emails")
    queue.enqueue({"to": "ann@example.org"})
    for job in queue.work():              # waits for jobs, keeps them alive, and finishes each after its turn
        with job:                         # an exception says that the attempt has failed
            send(job.json())

A lease is not a mutex: a process can be paused for longer than its lease lasts. Whatever the lease protects must refuse
a fence that is lower than one that it has seen.
"""

from ._client import Client
from ._errors import Held, LeaseholdError, Lost, TimedOut, Unavailable
from ._jobs import Job, Queue
from ._lease import Lease

__all__ = ["Client", "Held", "Job", "Lease", "LeaseholdError", "Lost", "Queue", "TimedOut", "Unavailable"]
__version__ = "0.1.0"
