"""Cuts the power under a store; run as root in a mount namespace of its own::

    unshare --mount python -m proof.peers.power STORE CUTS SCRATCH

It prints a JSON list for every cut: how many saves were acknowledged, how many of them were lost,
and the error that reading ended with, if any.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path

from tests.crash.power import Disk
from tests.crash.processes import ForkServer

from proof.peers.states import text_of
from proof.peers.stores import STORES

_MOST = 60


def main(name: str, cuts: int, scratch: Path) -> None:
    store = next(one for one in STORES if one.name == name)
    server = ForkServer(store.module)
    disk = Disk(scratch, "ext4", "loop")
    chance = random.Random(name)
    for cut in range(cuts):
        with disk.mounted() as root:
            directory = root / str(cut)
            directory.mkdir()
            # It was made long ago.
            os.sync()
            with server.start(f"{store.module}:save_for_ever", str(directory)) as child:
                told = child.hear(chance.randint(1, _MOST))
                os.kill(child.pid, signal.SIGSTOP)
                disk.cut()
                child.kill()
        said = {line[1] for line in told if line[0] == "saved"}
        with disk.mounted() as root:
            with server.start(f"{store.module}:look", str(root / str(cut))) as child:
                lines = child.hear_all()
            found = {line[1]: line[2] for line in lines if line[0] == "found"}
        lost = sum(found.get(one) != text_of(one) for one in said)
        crashed = [line[1].strip().splitlines()[-1] for line in lines if line[0] == "crashed"]
        print(json.dumps([len(said), lost, crashed[0][:80] if crashed else ""]), flush=True)
    server.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
