"""From documents to the objects a plan is made of, with one line for everything that is wrong with them.

An object is checked as an API server would check it, and beyond: what our own kinds do not know, what admission would refuse,
what no controller could use, quantities that are none. Whoever has no cluster to ask learns it here.

Offline there is no scheduler and no controller either, so their part is assumed: NodePools are ready, and a pod that waits
and was never looked at counts as looked at and found without a node. Claims of ephemeral volumes are made.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from karpenter.api import kinds
from karpenter.api.core import (
    ConfigMap,
    Container,
    CSINode,
    DaemonSet,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    PodSpec,
    ReplicationController,
    SelectingWorkload,
    Service,
    StorageClass,
)
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import Kind
from karpenter.api.kwok import KWOKNodeClass
from karpenter.api.meta import Condition, ObjectMeta, Wire
from karpenter.cli import volume_claims
from karpenter.cli.documents import Document, Malformed, documents
from karpenter.model import validation
from karpenter.model.schema import Finding
from karpenter.model.schema import at as member

_Storage = PersistentVolumeClaim | PersistentVolume | StorageClass | CSINode
_Owner = SelectingWorkload | ReplicationController
_Common = Pod | Node | NodePool | NodeClaim | DaemonSet | PodDisruptionBudget | Namespace | KWOKNodeClass
Planned = _Common | _Storage | Service | _Owner | ConfigMap
T = TypeVar("T", bound=Wire)

#: What a plan reads. Of node classes only the correctness is looked at: offline, pools do not need theirs.
_USED = (
    kinds.POD,
    kinds.NODE,
    kinds.NODE_POOL,
    kinds.NODE_CLAIM,
    kinds.DAEMON_SET,
    kinds.POD_DISRUPTION_BUDGET,
    kinds.NAMESPACE,
    kinds.PERSISTENT_VOLUME_CLAIM,
    kinds.PERSISTENT_VOLUME,
    kinds.STORAGE_CLASS,
    kinds.CSI_NODE,
    kinds.KWOK_NODE_CLASS,
)
#: What the selectors of default spread constraints are worked out from: read only where there are such constraints.
WORKLOADS: tuple[Kind[Wire], ...] = (
    kinds.SERVICE,  # type: ignore[assignment]
    kinds.REPLICATION_CONTROLLER,
    kinds.SELECTING_REPLICA_SET,
    kinds.SELECTING_STATEFUL_SET,
)
#: What says that the whole cluster is frozen: read where it is asked what may go.
FREEZE: tuple[Kind[Wire], ...] = (kinds.CONFIG_MAP,)  # type: ignore[assignment]
_OURS = frozenset({kinds.NODE_POOL.name, kinds.NODE_CLAIM.name, kinds.KWOK_NODE_CLASS.name})
_UNSCHEDULABLE = Condition(type="PodScheduled", status="False", reason="Unschedulable")
_READY = Condition(type="Ready", status="True", reason="Assumed")


@dataclass
class Objects:
    """What was read. ``skipped`` counts objects by kinds a plan has no use for, ``problems`` are lines for the user.

    ``live``: from a running cluster, where not everything wrong is the user's to mend.
    """

    pods: list[Pod] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    pools: list[NodePool] = field(default_factory=list)
    claims: list[NodeClaim] = field(default_factory=list)
    daemon_sets: list[DaemonSet] = field(default_factory=list)
    budgets: list[PodDisruptionBudget] = field(default_factory=list)
    namespaces: list[Namespace] = field(default_factory=list)
    volume_claims: list[PersistentVolumeClaim] = field(default_factory=list)
    volumes: list[PersistentVolume] = field(default_factory=list)
    storage_classes: list[StorageClass] = field(default_factory=list)
    csi_nodes: list[CSINode] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)
    owners: list[_Owner] = field(default_factory=list)
    config_maps: list[ConfigMap] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    live: bool = False

    def add(self, obj: Planned) -> None:
        """Put an object among its like."""
        match obj:
            case Pod():
                self.pods.append(obj)
            case Node():
                self.nodes.append(obj)
            case NodePool():
                self.pools.append(obj)
            case NodeClaim():
                self.claims.append(obj)
            case DaemonSet():
                self.daemon_sets.append(obj)
            case PodDisruptionBudget():
                self.budgets.append(obj)
            case Namespace():
                self.namespaces.append(obj)
            case PersistentVolumeClaim() | PersistentVolume() | StorageClass() | CSINode():
                self._add_storage(obj)
            case Service() | SelectingWorkload() | ReplicationController() | ConfigMap():
                self._add_further(obj)

    def _add_further(self, obj: Service | _Owner | ConfigMap) -> None:
        match obj:
            case Service():
                self.services.append(obj)
            case ConfigMap():
                self.config_maps.append(obj)
            case _:
                self.owners.append(obj)

    def _add_storage(self, obj: _Storage) -> None:
        match obj:
            case PersistentVolumeClaim():
                self.volume_claims.append(obj)
            case PersistentVolume():
                self.volumes.append(obj)
            case StorageClass():
                self.storage_classes.append(obj)
            case CSINode():
                self.csi_nodes.append(obj)


class _Name(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    generate_name: str = ""


class _Head(msgspec.Struct, rename="camel"):
    """What tells an object's kind and name without decoding the rest; lists have ``items``."""

    api_version: str = ""
    kind: str = ""
    metadata: _Name = msgspec.field(default_factory=_Name)
    items: tuple[msgspec.Raw, ...] | None = None


_HEAD = msgspec.json.Decoder(_Head)


@dataclass(frozen=True, slots=True)
class _Place:
    """An object in a document: its position among list items, its kind and name as far as they are known."""

    document: Document
    steps: str = ""
    kind: str = ""
    name: str = ""

    def line(self, path: str, text: str) -> str:
        who = f" ({' '.join(part for part in (self.kind, self.name) if part)})" if self.kind else ""
        where = ".".join(part for part in (self.steps, path) if part)
        return (
            f"{self.document.source}: document {self.document.number}{who}: " + (f"{where}: " if where else "") + text
        )


@dataclass(frozen=True, slots=True)
class _Object:
    """One object, not yet decoded."""

    place: _Place
    api_version: str
    kind: str
    data: bytes | msgspec.Raw


def read(paths: Iterable[str], well_known: frozenset[str], further: Iterable[Kind[Wire]] = ()) -> Objects:
    """All objects of files, directories and standard input, ready to be planned for.

    ``well_known`` are the labels the catalogue's types define; ``further`` kinds are read besides those any plan reads. What is
    wrong is left out and has its line in ``problems``.
    """
    reader = _Reader(well_known, (*_USED, *further))  # type: ignore[arg-type]
    for document in documents(paths):
        if isinstance(document, Malformed):
            reader.objects.problems.append(document.line)
        else:
            for item in _objects(_Place(document), document.data, "", ""):
                reader.take(item)
    found = reader.objects
    found.volume_claims = volume_claims.completed(found.volume_claims, found.pods, found.storage_classes)
    return found


def _objects(place: _Place, data: bytes | msgspec.Raw, api_version: str, kind: str) -> Iterator[_Object]:
    """The object itself, or those of a list. Items of typed lists (``PodList``) carry no kind: it is given."""
    head = _head(data)
    api_version, kind = head.api_version or api_version, head.kind or kind
    if head.items is None or not kind.endswith("List"):
        name = head.metadata.name or head.metadata.generate_name
        namespaced = (found := kinds.KINDS.get((api_version, kind))) is not None and found.namespaced
        full = f"{head.metadata.namespace or 'default'}/{name}" if namespaced and name else name
        yield _Object(replace(place, kind=kind, name=full), api_version, kind, data)
        return
    of_items = "" if kind == "List" else kind.removesuffix("List")
    for index, item in enumerate(head.items):
        steps = ".".join(part for part in (place.steps, f"items[{index}]") if part)
        yield from _objects(replace(place, steps=steps), item, api_version if of_items else "", of_items)


def _head(data: bytes | msgspec.Raw) -> _Head:
    try:
        return _HEAD.decode(data)
    except msgspec.ValidationError:
        return _loose_head(msgspec.json.decode(data))


def _loose_head(value: object) -> _Head:
    """What can be made out of something whose head is not in order (nulls, wrong types); the right message comes later."""
    found = value if isinstance(value, dict) else {}
    metadata = found.get("metadata")
    names = metadata if isinstance(metadata, dict) else {}
    name = _Name(*(_text(names.get(key)) for key in ("name", "namespace", "generateName")))
    items = found.get("items")
    raw = tuple(msgspec.Raw(msgspec.json.encode(item)) for item in items) if isinstance(items, list) else None
    return _Head(_text(found.get("apiVersion")), _text(found.get("kind")), name, raw)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


class _Reader:
    """Decodes, checks and completes one object after another."""

    def __init__(self, well_known: frozenset[str], used: Iterable[Kind[Wire]]) -> None:
        self.objects = Objects()
        self._well_known = well_known
        self._used = {(kind.api_version, kind.name): kind for kind in used}
        self._generated = 0

    def take(self, item: _Object) -> None:
        """Add an object, count it as of no use, or note what is wrong with it."""
        kind = self._used.get((item.api_version, item.kind))
        if kind is None:
            misfit = _unknown_kind(item, self._used.values())
            if misfit is None:
                self.objects.skipped[item.kind] += 1
            else:
                self._refuse(item, (misfit,))
            return
        found = tuple(_misfits(kind, item.data))
        obj = None if found else self._decoded(item, kind)
        if obj is None:
            self._refuse(item, found)
            return
        found = tuple(self._findings(obj))
        if found:
            self._refuse(item, found)
        else:
            self.objects.add(self._completed(obj, kind))

    def _refuse(self, item: _Object, findings: Iterable[Finding]) -> None:
        self.objects.problems += [item.place.line(finding.path, finding.message) for finding in findings]

    def _decoded(self, item: _Object, kind: Kind[Wire]) -> Planned | None:
        try:
            return kind.decode(item.data)  # type: ignore[return-value]
        except msgspec.ValidationError as error:
            self._refuse(item, (_located(error, item.data),))
            return None

    def _findings(self, obj: Planned) -> Iterator[Finding]:
        if not (obj.metadata.name or obj.metadata.generate_name):
            yield Finding("metadata.name", "required", "is missing; expected the name of the object")
        if isinstance(obj, NodePool):
            yield from validation.runtime(obj, self._well_known)
        elif isinstance(obj, Pod | Node | NodeClaim | DaemonSet):
            yield from validation.check_quantities(obj) or _negative_requests(obj)

    def _completed(self, obj: Planned, kind: Kind[Wire]) -> Planned:
        """The object with what a cluster would have filled in by now."""
        metadata = self._metadata(obj.metadata, kind)
        if isinstance(obj, NodePool):
            status = msgspec.structs.replace(obj.status, conditions=(_READY,))
            return msgspec.structs.replace(obj, metadata=metadata, status=status)
        if isinstance(obj, Pod) and _is_untouched(obj):
            conditions = (*obj.status.conditions, _UNSCHEDULABLE)
            status_of_pod = msgspec.structs.replace(obj.status, conditions=conditions)
            return msgspec.structs.replace(obj, metadata=metadata, status=status_of_pod)
        return obj if metadata is obj.metadata else msgspec.structs.replace(obj, metadata=metadata)

    def _metadata(self, metadata: ObjectMeta, kind: Kind[Wire]) -> ObjectMeta:
        if kind.namespaced and not metadata.namespace:
            metadata = msgspec.structs.replace(metadata, namespace="default")
        if not metadata.name:
            self._generated += 1
            metadata = msgspec.structs.replace(metadata, name=f"{metadata.generate_name}{self._generated}")
        if not metadata.uid:
            # Decisions tell objects apart by it.
            metadata = msgspec.structs.replace(metadata, uid=f"{kind.name}/{metadata.namespace}/{metadata.name}")
        return metadata


def _is_untouched(pod: Pod) -> bool:
    """Whether no scheduler has said anything about the pod, and nothing keeps it from one."""
    return (
        not pod.spec.node_name
        and not pod.spec.scheduling_gates
        and pod.status.phase in ("", "Pending")
        and all(condition.type != "PodScheduled" for condition in pod.status.conditions)
    )


def _unknown_kind(item: _Object, used: Iterable[Kind[Wire]]) -> Finding | None:
    """What is wrong with an object that is none of ours, None when it is merely of no use."""
    if not item.kind:
        return Finding("kind", "required", "is missing; expected a Kubernetes object with apiVersion and kind")
    if not item.api_version:
        return Finding("apiVersion", "required", f"is missing; expected the API version of {item.kind}")
    group = item.api_version.rpartition("/")[0]
    for kind in used:
        if kind.name == item.kind and kind.group == group:
            text = f"{item.api_version} is not supported; expected {kind.api_version}"
            return Finding("apiVersion", "version", text)
    return None


def _misfits(kind: Kind[Wire], data: bytes | msgspec.Raw) -> Iterator[Finding]:
    """What admission refuses and what it would silently drop, for our own kinds. Status is written by controllers."""
    if kind.name not in _OURS:
        return
    content = msgspec.json.decode(data)
    spec = {name: value for name, value in content.items() if name != "status"}
    yield from validation.unknown_fields(kind, spec)
    yield from validation.admit(kind, content)


# -- what the decoder says, made readable -------------------------------------------------------------------------------

_GOT = {"bool": bool, "int": int, "float": float, "str": str, "array": list, "object": dict, "null": type(None)}


def _located(error: msgspec.ValidationError, data: bytes | msgspec.Raw) -> Finding:
    """Path and sentence of a decoding error; a map's key, which the decoder leaves open, is looked up by its value's type."""
    text, _, where = str(error).partition(" - at `")
    path = where.rstrip("`").removeprefix("$").removeprefix(".")
    _, _, got = text.partition("got `")
    path = _with_keys(path, msgspec.json.decode(data), _GOT.get(got.rstrip("`")))
    plain = text.replace("`", "").replace("int | float | str", "a quantity (such as 500m, 2 or 4Gi)")
    return Finding(path, "decode", plain[:1].lower() + plain[1:])


def _with_keys(path: str, data: object, got: type | None) -> str:
    head, open_key, rest = path.partition("[...]")
    if not open_key or rest or got is None:
        return path
    found = _follow(head, data)
    keys = [key for key, value in found.items() if type(value) is got] if isinstance(found, dict) else []
    return member(head, keys[0]) if keys else path


def _follow(path: str, data: object) -> object:
    for step in path.replace("[", ".[").split("."):
        if step.startswith("[") and isinstance(data, list):
            data = data[int(step[1:-1])]
        elif isinstance(data, dict):
            data = data.get(step)
    return data


# -- requests below zero ------------------------------------------------------------------------------------------------


def _negative_requests(obj: Planned) -> Iterator[Finding]:
    """Requests no API server accepts: they would free room on a machine."""
    if isinstance(obj, Pod):
        yield from _negative(obj.spec, "spec")
    elif isinstance(obj, DaemonSet):
        yield from _negative(obj.spec.template.spec, "spec.template.spec")


def _negative(spec: PodSpec, path: str) -> Iterator[Finding]:
    lists: tuple[tuple[str, tuple[Container, ...]], ...] = (
        ("containers", spec.containers),
        ("initContainers", spec.init_containers),
    )
    for field_name, containers in lists:
        for index, container in enumerate(containers):
            for name, value in container.resources.requests.items():
                if value.startswith("-") if isinstance(value, str) else value < 0:
                    where = member(f"{path}.{field_name}[{index}].resources.requests", name)
                    yield Finding(where, "range", f"{value} is below zero; expected a quantity of at least 0")
