"""``karpenter demo --top`` and ``--console``: the demo's cluster on the screen of ``karpenter top``, or in the browser.

The cluster has an event loop of its own, in which time runs faster, so it lives in a thread. It hands over frozen input a few
times a second.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from karpenter.api import kinds
from karpenter.api.core import Event
from karpenter.cli.demo_options import DemoOptions
from karpenter.cli.demo_scenario import ScenarioPlayer, build_scenario
from karpenter.console.console_input import ConsoleInput
from karpenter.instancetypes import ec2_packaged_types
from karpenter.instancetypes.type_index import TypeIndex
from karpenter.instancetypes.well_known_labels import well_known_labels_of
from karpenter.kube.informer import Informer
from karpenter.model import labels
from karpenter.model.texts import count_text
from karpenter.settings import Settings
from karpenter.simulation import LoopClock, SimulatedCluster, SimulationConfig, run_paced, running_cluster

_START = datetime(2026, 1, 1, 8, tzinfo=UTC)
_HANDOVERS_PER_SECOND = 4.0
_STOP_SECONDS = 5.0
_HISTORY_INTERVAL = timedelta(seconds=10)


class DemoSource:
    """The demo's cluster, which begins when it runs and stays at the end of the story until the viewer ends."""

    def __init__(self, options: DemoOptions, history_file: str = "") -> None:
        """``history_file``: where its controller keeps its history; empty for none."""
        self._history_file = history_file
        self.title = f"demo: {count_text(options.pods, 'pod')}, seed {options.seed}, at {options.speed:g}x speed"
        self._options = options
        self._given: ConsoleInput | None = None
        self._headline = ""
        self._failure = ""
        self._is_over = threading.Event()
        types = ec2_packaged_types.packaged_instance_types()
        self._index = TypeIndex(types, well_known_labels_of(types) | labels.WELL_KNOWN)

    # -- the viewer's side ------------------------------------------------------------------------------------------------

    def current(self) -> ConsoleInput | None:
        """The cluster as it was handed over last."""
        return self._given

    def fault(self) -> str:
        """What ended the demo early."""
        return self._failure

    async def run(self) -> None:
        """Run the cluster until cancelled."""
        thread = threading.Thread(target=self._run_cluster, name="demo", daemon=True)
        thread.start()
        try:
            await asyncio.Event().wait()
        finally:
            self._is_over.set()
            thread.join(_STOP_SECONDS)

    # -- the cluster's side -----------------------------------------------------------------------------------------------

    def _run_cluster(self) -> None:
        try:
            run_paced(self._play, _START, self._options.speed)
        except Exception as error:  # whatever it is, the screen stays and says so
            self._failure = f"the demo ended: {error!r}"

    async def _play(self, clock: LoopClock) -> None:
        settings = Settings(history_file=self._history_file, history_interval=_HISTORY_INTERVAL)
        config = SimulationConfig(ec2_packaged_types.packaged_instance_types(), settings)
        async with running_cluster(clock, config) as cluster, asyncio.TaskGroup() as group:
            events = Informer(cluster.kube, kinds.EVENT)
            tasks = [group.create_task(events.run()), group.create_task(self._tell(cluster))]
            while not self._is_over.is_set():
                self._given = self._input_of(cluster, events)
                await asyncio.sleep(self._options.speed / _HANDOVERS_PER_SECOND)
            for task in tasks:
                task.cancel()

    async def _tell(self, cluster: SimulatedCluster) -> None:
        teller = ScenarioPlayer(cluster, build_scenario(self._options.pods, self._options.seed), self)
        await teller.create_pools()
        await teller.run_load_peak()
        await teller.survive_interruption()
        await teller.explain_unschedulable_pod()
        await teller.let_load_fall()

    def _input_of(self, cluster: SimulatedCluster, events: Informer[Event]) -> ConsoleInput:
        snapshot = cluster.state.snapshot()
        indexes: Mapping[str, TypeIndex] = {pool.metadata.name: self._index for pool in snapshot.pools}
        return ConsoleInput(
            snapshot, cluster.clock.now(), tuple(cluster.manager.informers.pods), (), tuple(events), indexes
        )

    # -- the story --------------------------------------------------------------------------------------------------------

    def phase(self, headline: str) -> None:
        """A phase begins."""
        self._headline = headline
        self.title = f"demo, {self._options.speed:g}x speed: {headline}"

    def note(self, text: str) -> None:
        """Something came out of the phase."""
        self.title = f"demo, {self._options.speed:g}x speed: {self._headline}: {text}"

    def switch_to_real_time(self) -> None:
        """The demo on this screen has no such phase."""
