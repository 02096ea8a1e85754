"""Objects that close themselves at the end of a ``with`` block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self


class Closing:
    """Calls `close` at the end of a ``with`` block."""

    if TYPE_CHECKING:

        def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class AsyncClosing:
    """Awaits `close` at the end of an ``async with`` block."""

    if TYPE_CHECKING:

        async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()
