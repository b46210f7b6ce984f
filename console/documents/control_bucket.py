"""The bucket of records outside groups: documents, answers to repeated requests, runners of groups.

group.<name>        a group's desired configuration: its document
pipeline.<name>     a SQL pipeline: its document
answer.<digest>     the answer to a request with a key: console.server.repeated_requests
runner.<group>      the runner of a group's processes: console.runner
"""

from __future__ import annotations

from nats.aio.client import Client

from pgsluice.shared.broker.bucket import Bucket

CONTROL_BUCKET = "pgsluice-control"  # no group's bucket is called so: theirs begin with pgsluice_


class ControlBucket(Bucket):
    """One for each NATS account."""

    history = 10
    spoken = "the control bucket"
    missing_remedy = "start 'pgsluice server', or apply a document; either creates it"

    def __init__(self, client: Client) -> None:
        super().__init__(client, CONTROL_BUCKET)
