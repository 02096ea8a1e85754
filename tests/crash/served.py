"""A server of runs, to be killed: a workflow that notes what it does, served in this process."""

from __future__ import annotations

import os
import socket

import surehold
import surehold.web.service.application  # with what it imports, before the process is forked
from surehold import CheckpointManager
from surehold.client import Client
from surehold.executors import Worker, served_by
from surehold.web import Caller, Tokens, service_app

TOKEN = "a-token-of-these-tests"


@surehold.step
def charge(order: int) -> int:
    with open(os.environ["CHARGED"], "a") as file:  # one write: atomic
        file.write(f"{order}\n")
    return order


@surehold.workflow
def order(number: int) -> int:
    return charge(number) + charge(-number)


def serve(storage: str, charged: str, listening: socket.socket) -> None:
    """Serve and execute runs until the process is killed."""
    import uvicorn

    os.environ["CHARGED"] = charged
    manager = CheckpointManager(storage)
    auth = Tokens({TOKEN: Caller("shop", "operate")})
    app = service_app(["tests.crash.served"], manager, auth=auth)
    made = Worker(manager.storage, served_by(["tests.crash.served"]), lease_seconds=2)
    with made.in_background():
        uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listening])


def client_of(port: int) -> Client:
    """A client of the server at that port."""
    return Client(f"http://127.0.0.1:{port}", TOKEN)
