"""Which tests the workers of a parallel run get, and in which order.

Tests of real processes mostly wait. Half of the workers begin with those, the other half with tests that compute: then two cores
are busy all the time, and only the workers that wait need a control plane. Who has done its share takes from the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

T = TypeVar("T")

#: Files that need the control plane without controllers: one worker runs them all, so that only one starts it.
_BARE: Final = (
    "tests/contract/",
    "tests/cluster/test_crds.py",
    "tests/cluster/test_crds_drift.py",
    "tests/cluster/test_server_restart.py",
    "tests/controlplane/test_harness.py",
    "tests/helm/test_release.py",
    "tests/unit/kube/test_client_real.py",
    "tests/unit/kube/test_transport.py",
)
_BARE_SCOPE: Final = "control plane"
_WAITING: Final = (
    *_BARE,
    _BARE_SCOPE,
    "tests/cluster/",
    "tests/controlplane/",
    "tests/process/",
    "tests/reports/test_install_guide.py",
    "tests/reports/test_kubeadm_run.py",
    "tests/reports/test_pilot_cronjob.py",
)
#: The longest of both sorts: one that begins last has the other workers wait for its end.
_LONG: Final = ("tests/reports/test_kubeadm_run.py", "tests/cluster/test_aws.py", "tests/unit/simulator/")


def waits(file: str) -> bool:
    """Whether the tests of a file, by its path from the root, mostly wait for other processes."""
    return file.startswith(_WAITING)


def computes(file: str) -> bool:
    """Whether they do not."""
    return not waits(file)


def longest_first(tests: Iterable[T], file_of: Callable[[T], str]) -> list[T]:
    """Tests in their order, but for the longest files, which begin."""
    return sorted(tests, key=lambda test: not file_of(test).startswith(_LONG))


class Files(LoadFileScheduling):
    """Whole files, and some files together."""

    def _split_scope(self, nodeid: str) -> str:
        return _BARE_SCOPE if nodeid.startswith(_BARE) else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """As in the base class, which takes the first scope there is and keeps all that are done."""
        scope = next_scope(self.workqueue, waits if self.nodes.index(node) % 2 == 0 else computes)
        unit = self.workqueue.pop(scope)
        unfinished = {name: tests for name, tests in self.assigned_work[node].items() if not all(tests.values())}
        self.assigned_work[node] = {**unfinished, scope: unit}
        places = {nodeid: place for place, nodeid in enumerate(self.registered_collections[node]) if nodeid in unit}
        node.send_runtest_some([places[nodeid] for nodeid, is_done in unit.items() if not is_done])


def next_scope(scopes: Iterable[str], is_preferred: Callable[[str], bool]) -> str:
    """The first scope that a worker prefers, or else the first. There must be one."""
    candidates = list(scopes)
    return next(filter(is_preferred, candidates), candidates[0])
