"""Which tests one worker of a parallel run gets together."""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadFileScheduling

#: Files that need the control plane without controllers: one worker runs them all, so that only one starts it.
_BARE: Final = (
    "tests/contract/",
    "tests/cluster/test_crds.py",
    "tests/cluster/test_crds_drift.py",
    "tests/cluster/test_server_restart.py",
    "tests/controlplane/test_harness.py",
    "tests/helm/test_release.py",
    "tests/unit/kube/test_client_real.py",
)


class Files(LoadFileScheduling):
    """Whole files, and some files together."""

    def _split_scope(self, nodeid: str) -> str:
        return "control plane" if nodeid.startswith(_BARE) else super()._split_scope(nodeid)
