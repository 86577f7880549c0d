"""`karpenter` on a computer whose clock is wrong: ``python skewed_clock.py <seconds ahead> <arguments>``.

Only the controller's clock is: the simulated instances, the cloud, the API server and all other components keep the
right time, as they would on computers of their own.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta

from karpenter import manager_cloud, manager_process
from karpenter.cli import main
from karpenter.model.clock import SystemClock


class WrongClock(SystemClock):
    """A clock that is ahead of the right time, or behind it."""

    ahead = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.ahead


if __name__ == "__main__":
    WrongClock.ahead = timedelta(seconds=float(sys.argv.pop(1)))
    vars(manager_process)["SystemClock"] = WrongClock
    simulated_setup = manager_cloud.simulated_setup
    manager_cloud.simulated_setup = lambda settings, kube, nodes_kube, _clock, cloud: simulated_setup(
        settings, kube, nodes_kube, SystemClock(), cloud
    )
    main.main()
