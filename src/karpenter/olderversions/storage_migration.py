"""Objects that an earlier installation stored as ``v1beta1`` are written again, so that all are stored as ``v1`` (API-851).

An API server writes an object in the storage version whenever a client changes it, and notes in ``status.storedVersions`` of the
CRD which versions it has ever written. A CRD without one of these versions is refused, so objects that no client changes would
keep ``v1beta1`` for ever. This is what the storage version migration of Kubernetes does, for our kinds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
import structlog

from karpenter.api.control_plane import CustomResourceDefinition
from karpenter.api.kinds import CUSTOM_RESOURCE_DEFINITION, Kind
from karpenter.api.meta import Wire
from karpenter.kube.decoding import metadata_of
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import JsonObject, Kube

#: Until the webhook answers, objects of ``v1beta1`` cannot be read.
FIRST_CHECK_SECONDS = 30.0
_CHECK_SECONDS = 3600.0
_STORED_BEFORE = re.compile(r"v1(alpha|beta)[0-9]+")
_log = structlog.get_logger()


class _Version(msgspec.Struct, frozen=True):
    name: str
    storage: bool = False


class _DefinitionSpec(msgspec.Struct, frozen=True):
    versions: tuple[_Version, ...] = ()


class StorageMigration:
    """Writes the objects of ``kinds`` again where their CRD says that some may be stored in an older version."""

    def __init__(self, kube: Kube, kinds: Iterable[Kind[Wire]]) -> None:
        self._kube = kube
        self._kinds = tuple(kinds)

    async def reconcile(self) -> float:
        """One check; returns the seconds until the next. Raises ``KubeError``."""
        for kind in self._kinds:
            try:
                definition = await self._kube.get(CUSTOM_RESOURCE_DEFINITION, f"{kind.plural}.{kind.group}")
            except NotFound:
                continue
            if has_older_objects(definition, kind):
                await self._migrate(kind, definition)
        return _CHECK_SECONDS

    async def _migrate(self, kind: Kind[Wire], definition: CustomResourceDefinition) -> None:
        names = await self._names(kind)
        for name in names:
            await self._write_again(kind, name)
        # Only the definition that was read: one whose storage version has changed since has to be read again.
        version, stored = definition.metadata.resource_version, definition.status.stored_versions
        patch: JsonObject = {"status": {"storedVersions": [kind.version]}}
        await self._kube.patch(
            CUSTOM_RESOURCE_DEFINITION, definition.metadata.name, patch, subresource="status", resource_version=version
        )
        _log.info("objects are stored in one version", kind=kind.name, before=list(stored), objects=len(names))

    async def _names(self, kind: Kind[Wire]) -> list[str]:
        """All objects, those among them that do not decode."""
        listing = await self._kube.list(kind)
        return [metadata_of(one).name for one in listing.items] + [one.name for one in listing.undecodable]

    async def _write_again(self, kind: Kind[Wire], name: str) -> None:
        """An empty patch: the API server writes an object that is stored in another version, and no other."""
        try:
            await self._kube.patch(kind, name, {})
        except NotFound:
            return


def has_older_objects(definition: CustomResourceDefinition, kind: Kind[Wire]) -> bool:
    """Whether objects may be stored in an older version, although our version is what is stored now."""
    spec = msgspec.json.decode(definition.spec, type=_DefinitionSpec)
    is_stored_now = _Version(kind.version, storage=True) in spec.versions
    return is_stored_now and any(_STORED_BEFORE.fullmatch(version) for version in definition.status.stored_versions)
