"""A principal that asks for much keeps no other principal waiting."""

from __future__ import annotations

import asyncio

from pgsluice.console.server.fair_share import FairShare


def test_who_asks_for_much_waits_for_themself_and_others_go_on() -> None:
    async def ask() -> list[str]:
        share, begun, both = FairShare(2), list[str](), asyncio.Barrier(3)

        async def work(token: str) -> None:
            async with share.of(token):
                begun.append(token)
                if len(begun) <= 2:
                    await both.wait()

        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            for token in ("much", "much", "much", "other"):
                tasks.create_task(work(token))
            await both.wait()
        return begun

    assert asyncio.run(ask()) == ["much", "other", "much", "much"]


def test_no_more_go_on_at_once_than_may() -> None:
    async def ask() -> int:
        share, inside, most = FairShare(2), set[str](), 0

        async def work(token: str) -> None:
            nonlocal most
            async with share.of(token):
                inside.add(token)
                most = max(most, len(inside))
                await asyncio.sleep(0)  # others have their turn
                inside.remove(token)

        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            for token in "abcd":
                tasks.create_task(work(token))
        return most

    assert asyncio.run(ask()) == 2
