"""From documents to the objects a plan is made of, with one line for everything that is wrong with them.

An object is checked as an API server would check it, and beyond: what our own kinds do not know, what admission would refuse,
what no controller could use, quantities that are none. Whoever has no cluster to ask learns it here.

Offline there is no admission, no scheduler and no controller either, so their part is assumed: defaults are filled in, workloads
have their pods, claims of volumes are made (``assumed_status`` says what else).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from karpenter.api import kinds
from karpenter.api.apps import DaemonSet
from karpenter.api.core import Container, Node, Pod, PodSpec
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import Kind, without_nulls
from karpenter.api.meta import ObjectMeta, Wire
from karpenter.api.node_overlay import NodeOverlay
from karpenter.cli import (
    assumed_admission,
    assumed_status,
    cluster_objects,
    label_advice,
    manifest_kinds,
    offline_volume_claims,
    quantity_advice,
)
from karpenter.cli.cluster_objects import ClusterObjects, PlanObject
from karpenter.cli.finding_hints import with_hint
from karpenter.cli.manifest_documents import (
    EXPECTED,
    EmptySource,
    MalformedDocument,
    ManifestDocument,
    SourcePart,
    read_documents,
    read_source,
)
from karpenter.cli.object_location import LocatedFinding, ObjectLocation
from karpenter.cli.planning_options import InputOptions, ReplicaChoice
from karpenter.cli.workload_expansion import expand_workloads
from karpenter.model import labels, runtime_validation
from karpenter.model.pod_defaults import default_pod_spec
from karpenter.model.pod_templates import PodCarrier, pod_spec_of, pod_spec_path
from karpenter.model.pod_validation import pod_findings
from karpenter.model.structural_schema import Finding, get_member
from karpenter.model.structural_schema import child_path as member
from karpenter.model.texts import count_text, decoding_place
from karpenter.model.workload_schema import unknown_workload_fields
from karpenter.state.gang_index import GANG_KINDS

T = TypeVar("T", bound=Wire)
#: Codes of what is only noticed.
SIMILAR_LABEL = "similar label"
ODD_QUANTITY = "odd quantity"

#: What a plan reads.
_PLAN_KINDS = (
    *cluster_objects.DEVICE_KINDS,
    *GANG_KINDS,
    kinds.POD,
    kinds.NODE,
    kinds.NODE_POOL,
    kinds.NODE_CLAIM,
    kinds.DAEMON_SET,
    kinds.DEPLOYMENT,
    kinds.REPLICA_SET,
    kinds.STATEFUL_SET,
    kinds.JOB,
    kinds.CRON_JOB,
    kinds.POD_TEMPLATE,
    kinds.HORIZONTAL_POD_AUTOSCALER_V1,
    kinds.HORIZONTAL_POD_AUTOSCALER,
    kinds.PRIORITY_CLASS,
    kinds.LIMIT_RANGE,
    kinds.POD_DISRUPTION_BUDGET,
    kinds.NAMESPACE,
    kinds.PERSISTENT_VOLUME_CLAIM,
    kinds.PERSISTENT_VOLUME,
    kinds.STORAGE_CLASS,
    kinds.CSI_NODE,
    kinds.KWOK_NODE_CLASS,
    kinds.MACHINE_NODE_CLASS,
    kinds.EC2_NODE_CLASS,
    kinds.NODE_OVERLAY,
    kinds.CAPACITY_BUFFER,
    kinds.CAPACITY_SCHEDULE,
)
_KARPENTER_KINDS = frozenset(
    kind.name
    for kind in (
        kinds.NODE_POOL,
        kinds.NODE_CLAIM,
        kinds.KWOK_NODE_CLASS,
        kinds.MACHINE_NODE_CLASS,
        kinds.EC2_NODE_CLASS,
        kinds.NODE_OVERLAY,
        kinds.CAPACITY_BUFFER,
        kinds.CAPACITY_SCHEDULE,
    )
)


class _Name(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    generate_name: str = ""
    resource_version: str = ""


class _ObjectHead(msgspec.Struct, rename="camel"):
    """What tells an object's kind and name without decoding the rest; lists have ``items``."""

    api_version: str = ""
    kind: str = ""
    metadata: _Name = msgspec.field(default_factory=_Name)
    items: tuple[msgspec.Raw, ...] | None = None


_HEAD = msgspec.json.Decoder(_ObjectHead)


@dataclass(frozen=True, slots=True)
class RawObject:
    """One object, not yet decoded."""

    location: ObjectLocation
    api_version: str
    kind: str
    data: bytes | msgspec.Raw
    #: It was stored by a server, which filled in its defaults.
    is_stored: bool = False


def read_manifests(
    options: InputOptions, well_known: frozenset[str], extra_kinds: Iterable[Kind[Wire]] = ()
) -> ClusterObjects:
    """All objects of files, directories, standard input or a text, ready to be planned for.

    ``well_known`` are the labels that instance types define; ``extra_kinds`` are read besides those any plan reads. What is
    wrong is left out and has its line in ``problems``.
    """
    return read_parts(_source_parts(options), well_known, extra_kinds, options.replicas)


def read_parts(
    parts: Iterable[SourcePart],
    well_known: frozenset[str],
    extra_kinds: Iterable[Kind[Wire]] = (),
    replicas: ReplicaChoice = "current",
) -> ClusterObjects:
    """The same for sources that have been read."""
    reader = _ManifestReader(well_known, (*extra_kinds, *_PLAN_KINDS))  # type: ignore[arg-type]
    for part in parts:
        reader.read(part)
    reader.report_sources()
    cluster_objects = reader.objects
    assumed_admission.apply_limit_ranges(cluster_objects)
    replicas_by_owner = expand_workloads(cluster_objects, replicas)
    assumed_status.assign_priorities(cluster_objects)
    assumed_status.count_budgets(cluster_objects, replicas_by_owner)
    _complete_storage(cluster_objects)
    return cluster_objects


def _complete_storage(objects: ClusterObjects) -> None:
    objects.volume_claims = offline_volume_claims.complete_volume_claims(
        objects.volume_claims, objects.pods, objects.storage_classes
    )
    if not objects.storage_classes:
        assumed = offline_volume_claims.assumed_storage_classes(objects.volume_claims)
        objects.volume_claims, objects.storage_classes, line = assumed
        objects.notices += [line] if line else []


def _source_parts(options: InputOptions) -> Iterator[SourcePart]:
    yield from read_documents(options.filename or (), recursive=options.recursive)
    if options.text is not None:
        yield from read_source("text", options.text.encode())


def split_objects(
    location: ObjectLocation, data: bytes | msgspec.Raw, api_version: str = "", kind: str = ""
) -> Iterator[RawObject]:
    """The object itself, or those of a list. Items of typed lists (``PodList``) carry no kind: it is given."""
    head = _head(data)
    api_version, kind = head.api_version or api_version, head.kind or kind
    if head.items is None or not kind.endswith("List"):
        name = head.metadata.name or head.metadata.generate_name
        namespaced = (registered := kinds.KINDS.get((api_version, kind))) is not None and registered.namespaced
        full = f"{head.metadata.namespace or 'default'}/{name}" if namespaced and name else name
        is_stored = bool(head.metadata.resource_version)
        yield RawObject(replace(location, kind=kind, name=full), api_version, kind, data, is_stored)
        return
    of_items = "" if kind == "List" else kind.removesuffix("List")
    for index, listed in enumerate(head.items):
        steps = ".".join(part for part in (location.item_path, f"items[{index}]") if part)
        yield from split_objects(replace(location, item_path=steps), listed, api_version if of_items else "", of_items)


def _head(data: bytes | msgspec.Raw) -> _ObjectHead:
    try:
        return _HEAD.decode(data)
    except msgspec.ValidationError:
        return _loose_head(msgspec.json.decode(data))


def _loose_head(value: object) -> _ObjectHead:
    """What can be made out of something whose head is not in order (nulls, wrong types); the right message comes later."""
    members = value if isinstance(value, dict) else {}
    metadata = members.get("metadata")
    names = metadata if isinstance(metadata, dict) else {}
    name = _Name(*(_text(names.get(key)) for key in ("name", "namespace", "generateName", "resourceVersion")))
    items = members.get("items")
    raw = tuple(msgspec.Raw(msgspec.json.encode(listed)) for listed in items) if isinstance(items, list) else None
    return _ObjectHead(_text(members.get("apiVersion")), _text(members.get("kind")), name, raw)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


class _ManifestReader:
    """Decodes, checks and completes one object after another."""

    def __init__(self, well_known: frozenset[str], used: Iterable[Kind[Wire]]) -> None:
        self.objects = ClusterObjects()
        self._well_known = well_known
        self._used = {(kind.api_version, kind.name): kind for kind in used}
        self._generated = 0
        #: Where the first object of a kind and name stands.
        self._places: dict[tuple[str, str], ObjectLocation] = {}
        self._objects_by_source: Counter[str] = Counter()
        #: Where labels are asked for that look like others: by key, the line of the first object and how many there are.
        self._odd_labels: dict[str, list[LocatedFinding]] = {}

    def read(self, part: SourcePart) -> None:
        """Add the objects of a document, or note what is wrong with it."""
        match part:
            case MalformedDocument(message):
                self.objects.problems.append(message)
            case EmptySource(source):
                self._objects_by_source[source] += 0
            case ManifestDocument(source, _, data):
                self._objects_by_source[source] += 0
                for raw_object in split_objects(ObjectLocation(part), data):
                    self._objects_by_source[source] += 1
                    self.process(raw_object)

    def report_sources(self) -> None:
        """Note sources without objects, a problem where no source has any, and labels that were probably not meant."""
        empty = [
            f"{source}: no objects in it; {EXPECTED}" for source, count in self._objects_by_source.items() if not count
        ]
        if self._objects_by_source.total() or self.objects.problems:
            self.objects.notices += empty
        else:
            self.objects.problems += empty
        defined = label_advice.defined_labels(self.objects)
        for key, located in self._odd_labels.items():
            if key not in defined:
                more = f" ({count_text(len(located) - 1, 'more place')})" if len(located) > 1 else ""
                self.objects.notices.append(f"{located[0].line}{more}")
                self.objects.located_notices += located

    def process(self, raw_object: RawObject) -> None:
        """Add an object, count it as of no use, or note what is wrong with it."""
        kind = self._used.get((raw_object.api_version, raw_object.kind))
        if kind is None:
            misfit = manifest_kinds.misfit(raw_object.api_version, raw_object.kind)
            if misfit is None:
                self.objects.skipped[raw_object.kind] += 1
            else:
                self._report_findings(raw_object, (misfit,))
            return
        findings = _field_findings(kind, raw_object)
        obj = None if findings else self._decode(raw_object, kind)
        if obj is None:
            self._report_findings(raw_object, findings)
            return
        findings = (*self._findings(obj, raw_object), *self._repetitions(obj, raw_object))
        if findings:
            self._report_findings(raw_object, findings)
        else:
            admitted = obj if raw_object.is_stored else _with_server_defaults(obj, kind, raw_object.data)
            self.objects.add(self._with_assumed_status(admitted, kind))
            if isinstance(obj, Node):
                from karpenter.cli.node_heartbeats import node_heartbeats

                self.objects.heartbeats += node_heartbeats(raw_object.data)
            self._note_odd_labels(obj, raw_object)
            for path, text in quantity_advice.odd_quantities(obj):
                located = LocatedFinding(raw_object.location, Finding(path, ODD_QUANTITY, text))
                self.objects.notices.append(located.line)
                self.objects.located_notices.append(located)

    def _note_odd_labels(self, obj: PlanObject, raw_object: RawObject) -> None:
        for path, key in label_advice.asked_labels(obj):
            meant = label_advice.similar_label(key)
            if meant and key not in self._well_known:
                text = f"label {key} is defined by no NodePool or node of the input; did you mean {meant}?"
                finding = Finding(path, SIMILAR_LABEL, text)
                self._odd_labels.setdefault(key, []).append(LocatedFinding(raw_object.location, finding))

    def _report_findings(self, raw_object: RawObject, findings: Iterable[Finding]) -> None:
        for finding in findings:
            located = LocatedFinding(raw_object.location, finding)
            self.objects.problems.append(located.line)
            self.objects.located_problems.append(located)

    def _decode(self, raw_object: RawObject, kind: Kind[Wire]) -> PlanObject | None:
        try:
            return kind.decode(raw_object.data)  # type: ignore[return-value]
        except msgspec.ValidationError as error:
            self._report_findings(raw_object, (_decode_finding(error, raw_object.data),))
            return None

    def _repetitions(self, obj: PlanObject, raw_object: RawObject) -> Iterator[Finding]:
        """That an object of the kind and name stands elsewhere: counted twice, its pods would get nodes twice."""
        if obj.metadata.name:
            location = raw_object.location
            first = self._places.setdefault((raw_object.kind, location.name), location)
            if first is not location:
                where = f"{first.document.source}, document {first.document.number}"
                yield Finding("metadata.name", "unique", f"stands in {where}, too; leave one of them out")

    def _findings(self, obj: PlanObject, raw_object: RawObject) -> Iterator[Finding]:
        if not (obj.metadata.name or obj.metadata.generate_name):
            yield Finding("metadata.name", "required", "is missing; expected the name of the object")
        elif obj.metadata.name and not labels.is_dns_subdomain(obj.metadata.name):
            yield Finding("metadata.name", "name", f"{obj.metadata.name!r} is not a name; expected {_NAME_RULE}")
        if isinstance(obj, NodePool):
            yield from runtime_validation.validate_node_pool(obj, self._well_known)
        elif isinstance(obj, NodeOverlay):
            yield from runtime_validation.validate_node_overlay(obj, self._well_known)
        elif isinstance(obj, EC2NodeClass):
            yield from _node_class_findings(obj)
        elif isinstance(obj, Node | NodeClaim):
            yield from runtime_validation.check_quantities(obj)
        elif isinstance(obj, PodCarrier):
            findings = runtime_validation.check_quantities(obj)
            yield from findings or _negative_requests(obj)
            if not findings and not raw_object.is_stored:
                yield from pod_findings(obj)

    def _with_assumed_status(self, obj: PlanObject, kind: Kind[Wire]) -> PlanObject:
        """The object with what a cluster would have filled in by now."""
        obj = msgspec.structs.replace(obj, metadata=self._with_defaults(obj.metadata, kind))
        if isinstance(obj, NodePool):
            return assumed_status.ready_pool(obj)
        return assumed_status.with_scheduling_result(obj) if isinstance(obj, Pod) else obj

    def _with_defaults(self, metadata: ObjectMeta, kind: Kind[Wire]) -> ObjectMeta:
        if kind.namespaced and not metadata.namespace:
            metadata = msgspec.structs.replace(metadata, namespace="default")
        if not metadata.name:
            self._generated += 1
            metadata = msgspec.structs.replace(metadata, name=f"{metadata.generate_name}{self._generated}")
        if not metadata.uid:
            metadata = msgspec.structs.replace(metadata, uid=assumed_status.assumed_uid(kind.name, metadata))
        return metadata


def _node_class_findings(node_class: EC2NodeClass) -> Iterator[Finding]:
    """What the class's controller would find without asking AWS."""
    from karpenter.providers.aws.nodeclass.nodeclass_validation import kubelet_problem, volume_problem

    problem = kubelet_problem(node_class.spec, expressions=True) or volume_problem(node_class.spec)
    if problem is not None:
        path, _, text = problem.message.partition(": ")
        yield Finding(path, problem.reason, text)


def _with_server_defaults(obj: PlanObject, kind: Kind[Wire], data: bytes | msgspec.Raw) -> PlanObject:
    """The object with the defaults that an API server fills into its pods. A DaemonSet's template is read as it is."""
    path = pod_spec_path(type(obj))
    if not path or isinstance(obj, DaemonSet):
        return obj
    content = without_nulls(msgspec.json.decode(data))
    spec = get_member(content, *path)
    if isinstance(spec, dict):
        default_pod_spec(spec)
    return msgspec.convert(content, kind.type)  # type: ignore[return-value]


def _field_findings(kind: Kind[Wire], raw_object: RawObject) -> tuple[Finding, ...]:
    """Fields that no server knows, and for our own kinds what admission refuses. A server has seen to stored objects."""
    if kind.name in _KARPENTER_KINDS:
        return tuple(map(with_hint, _admission_findings(kind, raw_object.data)))
    return () if raw_object.is_stored else unknown_workload_fields(kind.name, raw_object.data)


def _admission_findings(kind: Kind[Wire], data: bytes | msgspec.Raw) -> Iterator[Finding]:
    """What admission refuses and what it would silently drop. Status is written by controllers."""
    content = msgspec.json.decode(data)
    spec = {name: value for name, value in content.items() if name != "status"}
    yield from runtime_validation.unknown_fields_of(kind, spec)
    yield from runtime_validation.admit(kind, content)


# -- what the decoder says, made readable -------------------------------------------------------------------------------

_NAME_RULE = "lower-case letters, digits, '-' and '.', such as web-1"
_TYPE_WORDS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}
_QUOTED = frozenset({("str", "int"), ("str", "float"), ("str", "bool")})
_UNQUOTED = frozenset({("int", "str"), ("float", "str"), ("bool", "str")})
_JSON_TYPES = {"bool": bool, "int": int, "float": float, "str": str, "array": list, "object": dict, "null": type(None)}


def _decode_finding(error: msgspec.ValidationError, data: bytes | msgspec.Raw) -> Finding:
    """Path and sentence of a decoding error; a map's key, which the decoder leaves open, is looked up by its value's type."""
    path, text = decoding_place(error)
    _, _, got = text.partition("got `")
    path = _with_keys(path, msgspec.json.decode(data), _JSON_TYPES.get(got.rstrip("`")))
    plain = (
        text.replace("`", "").replace("int | float | str", "a quantity (such as 500m, 2 or 4Gi)").replace(" | null", "")
    )
    return Finding(path, "decode", _in_words(plain[:1].lower() + plain[1:]))


def _in_words(sentence: str) -> str:
    """The decoder's sentence with the words of JSON for its types, and what to do about quotes."""
    expected, comma, got = sentence.partition(", got ")
    wanted = expected.removeprefix("expected ")
    if not comma or expected == sentence:
        return sentence
    mend = (
        "; put it in quotes"
        if (wanted, got) in _QUOTED
        else "; remove the quotes"
        if (wanted, got) in _UNQUOTED
        else ""
    )
    return f"expected {_TYPE_WORDS.get(wanted, wanted)}, got {_TYPE_WORDS.get(got, got)}{mend}"


def _with_keys(path: str, data: object, got: type | None) -> str:
    head, open_key, rest = path.partition("[...]")
    if not open_key or rest or got is None:
        return path
    follow = _follow(head, data)
    keys = [key for key, value in follow.items() if type(value) is got] if isinstance(follow, dict) else []
    return member(head, keys[0]) if keys else path


def _follow(path: str, data: object) -> object:
    for step in path.replace("[", ".[").split("."):
        if step.startswith("[") and isinstance(data, list):
            data = data[int(step[1:-1])]
        elif isinstance(data, dict):
            data = data.get(step)
    return data


# -- requests below zero ------------------------------------------------------------------------------------------------


def _negative_requests(obj: PodCarrier) -> Iterator[Finding]:
    """Negative requests, which no API server accepts."""
    yield from _negative(pod_spec_of(obj), ".".join(pod_spec_path(type(obj))))


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
