"""Appends to a session until it is killed, and tells of each append that has returned."""

from __future__ import annotations

import asyncio
import sys
from uuid import UUID

from surehold.integrations.claude_agent import SureholdSessionStore


async def main(address: str) -> None:
    async with SureholdSessionStore(address) as store:
        for number in range(10_000):
            entries = [
                {"type": "user", "uuid": str(UUID(int=2 * number + at)), "text": f"{number} {at}"}
                for at in range(2)
            ]
            await store.append({"project_key": "p", "session_id": "s"}, entries)  # type: ignore[arg-type]
            print(number, flush=True)


asyncio.run(main(sys.argv[1]))
