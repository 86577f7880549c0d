"""Follows the ConfigMap that freezes the whole cluster, so that every snapshot says whether it is there."""

from __future__ import annotations

import structlog

from karpenter.api.core import ConfigMap
from karpenter.api.kinds import CONFIG_MAP
from karpenter.cluster import ClusterState
from karpenter.kube.informer import Informer, Scope
from karpenter.kube.protocol import Reader
from karpenter.model import freezes

_log = structlog.get_logger()


def follow(reader: Reader, state: ClusterState) -> Informer[ConfigMap]:
    """A watch on that one object, which needs no right on any other (OPS-660 ff.)."""
    informer = Informer(reader, CONFIG_MAP, Scope(freezes.NAMESPACE, field_selector=f"metadata.name={freezes.NAME}"))

    def tell(_old: ConfigMap | None, new: ConfigMap | None) -> None:
        state.freeze = None if new is None else freezes.of_config_map(new)
        if state.freeze is None:
            _log.info(
                "freeze of the cluster taken away", ConfigMap={"namespace": freezes.NAMESPACE, "name": freezes.NAME}
            )
        elif state.freeze.findings:
            _log.error("freeze of the cluster cannot be read in full", freeze=str(state.freeze))
        else:
            _log.info("freeze of the cluster", freeze=str(state.freeze))

    informer.subscribe(tell)
    return informer
