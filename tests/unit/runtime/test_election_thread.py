"""An election on its own thread: how it reports to the event loop of the controllers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from karpenter.runtime.election_thread import ElectionThread, Leadership, NoElection
from karpenter.runtime.leader_election import LeadershipLost

LONGEST_SECONDS = 20


class Campaign:
    """An election whose outcome a test decides, from whatever thread it runs on."""

    def __init__(self) -> None:
        self.thread = 0
        self.turns = 0
        self.has_left = False
        self.lose = threading.Event()
        self.win = threading.Event()

    async def __call__(self, won: Callable[[], None], leave: asyncio.Event) -> None:
        self.thread = threading.get_ident()
        while not leave.is_set():
            if self.win.is_set():
                won()
            if self.lose.is_set():
                raise LeadershipLost("somebody took it")
            self.turns += 1
            await asyncio.sleep(0.001)
        self.has_left = True


async def test_the_controller_loop_is_notified_of_a_won_election() -> None:
    campaign = Campaign()
    leadership = ElectionThread(campaign)
    elected = asyncio.create_task(leadership.elected())
    await asyncio.wait({elected}, timeout=0.05)
    assert not elected.done()
    campaign.win.set()
    await asyncio.wait_for(elected, LONGEST_SECONDS)
    # It may be asked again.
    await asyncio.wait_for(leadership.elected(), LONGEST_SECONDS)
    assert campaign.thread != threading.get_ident()
    await leadership.release()


async def test_a_loss_is_raised_where_it_is_waited_for() -> None:
    campaign = Campaign()
    leadership = ElectionThread(campaign)
    campaign.lose.set()
    with pytest.raises(LeadershipLost, match="somebody took it"):
        await asyncio.wait_for(leadership.ended(), LONGEST_SECONDS)


async def test_a_leader_that_stops_waits_until_the_lease_is_released() -> None:
    campaign = Campaign()
    leadership = ElectionThread(campaign)
    await asyncio.wait_for(leadership.release(), LONGEST_SECONDS)
    assert campaign.has_left
    await asyncio.wait_for(leadership.ended(), LONGEST_SECONDS)


async def test_a_loop_that_computes_for_long_does_not_hold_the_election_up() -> None:
    campaign = Campaign()
    leadership = ElectionThread(campaign)
    async with asyncio.timeout(LONGEST_SECONDS):
        while not campaign.turns:
            await asyncio.sleep(0)
    before = campaign.turns
    total = 0
    while campaign.turns < before + 5 and total < 1_000_000_000:
        total += 1
    assert campaign.turns >= before + 5
    await leadership.release()


async def test_alone_one_leads_at_once_and_for_good() -> None:
    """OPS-317"""
    alone: Leadership = NoElection()
    await alone.elected()
    ended = asyncio.create_task(alone.ended())
    await asyncio.wait({ended}, timeout=0.01)
    assert not ended.done()
    ended.cancel()
    await alone.release()
