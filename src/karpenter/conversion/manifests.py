"""All objects of an input as objects of ``v1``, with the notes about them (API-816 to API-820)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from karpenter.api import crds, kinds
from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim, NodePool
from karpenter.api.kinds import Kind
from karpenter.api.meta import Wire
from karpenter.conversion import node_claims, node_classes, node_pools
from karpenter.conversion.drafts import Draft, InputObject
from karpenter.conversion.json_fields import Json, object_field, text_field, text_of
from karpenter.conversion.kubelets import place_kubelets
from karpenter.conversion.metadata import converted_metadata
from karpenter.conversion.misspelt_fields import fail_on_misspelt_fields
from karpenter.conversion.node_pools import ConvertedPool
from karpenter.conversion.notes import NotConvertible, Note, NoteList
from karpenter.conversion.options import ConversionOptions
from karpenter.model import runtime_validation
from karpenter.model.structural_schema import Finding, Schema, unknown_field_findings
from karpenter.model.texts import decoding_text

_Convert = Callable[[Json, Json, ConversionOptions, NoteList], ConvertedPool | Json]
#: How each kind is converted.
_CONVERTERS: dict[tuple[str, str], _Convert] = {
    ("karpenter.sh/v1alpha5", "Provisioner"): node_pools.from_provisioner,
    ("karpenter.sh/v1alpha5", "Machine"): node_claims.from_machine,
    ("karpenter.k8s.aws/v1alpha1", "AWSNodeTemplate"): node_classes.from_node_template,
    ("karpenter.sh/v1beta1", "NodePool"): node_pools.from_beta,
    ("karpenter.sh/v1beta1", "NodeClaim"): node_claims.from_beta,
    ("karpenter.k8s.aws/v1beta1", "EC2NodeClass"): node_classes.from_beta,
    ("karpenter.sh/v1", "NodePool"): node_pools.from_v1,
    ("karpenter.sh/v1", "NodeClaim"): node_claims.from_v1,
    ("karpenter.k8s.aws/v1", "EC2NodeClass"): node_classes.from_v1,
}
#: Names of the kinds that ``karpenter convert`` takes.
CONVERTED_KIND_NAMES = tuple(dict.fromkeys(kind for _, kind in _CONVERTERS))
#: Older kinds that ``karpenter convert`` takes, by API version and kind.
OLDER_KINDS = frozenset(key for key in _CONVERTERS if not key[0].endswith("/v1"))
_V1_KINDS: dict[str, Kind[Wire]] = {
    kind.name: cast("Kind[Wire]", kind) for kind in (kinds.NODE_POOL, kinds.NODE_CLAIM, kinds.EC2_NODE_CLASS)
}
_DEFAULT_EXPIRY = "720h"


def unserved_version(api_version: str, kind: str) -> str | None:
    """What is wrong with the version of a kind that Karpenter has or had only in others; None for other objects."""
    group = api_version.partition("/")[0]
    versions = [known for known, name in _CONVERTERS if (known.partition("/")[0], name) == (group, kind)]
    if not versions or api_version in versions:
        return None
    return f"{api_version} has no {kind}; expected {' or '.join(versions)}"


@dataclass(frozen=True, slots=True)
class ObjectNotes:
    """The notes about one object of the input."""

    origin: str
    kind: str
    name: str
    notes: tuple[Note, ...]

    @property
    def subject(self) -> str:
        """Kind and name, as far as they are known."""
        return f"{self.kind}/{self.name}".strip("/")


@dataclass(frozen=True, slots=True)
class ConvertedManifests:
    """The objects of the output, in input order, and what there is to say."""

    objects: tuple[Json, ...]
    notes: tuple[ObjectNotes, ...]
    #: Whether an object of a kind that is converted could not be converted.
    failed: bool
    #: Objects of kinds that are not converted.
    foreign_count: int

    @property
    def nothing_to_convert(self) -> bool:
        """Whether the input had no object of a kind that is converted."""
        return self.foreign_count == len(self.notes)


def convert_manifests(inputs: Sequence[InputObject], options: ConversionOptions) -> ConvertedManifests:
    """Convert all objects of an input. An object that cannot be converted is left out; the others are not affected."""
    drafts = place_kubelets([draft for given in inputs for draft in _drafts(given, options)])
    _complete_claims(drafts)
    for draft in drafts:
        if draft.is_converted:
            _finish(draft, options)
    return ConvertedManifests(
        tuple(draft.content for draft in drafts if draft.is_converted or (draft.is_foreign and options.keep_others)),
        tuple(ObjectNotes(draft.origin, draft.kind, draft.name, draft.notes.frozen()) for draft in drafts),
        any(draft.notes.failed for draft in drafts),
        sum(draft.is_foreign for draft in drafts),
    )


def _drafts(given: InputObject, options: ConversionOptions) -> Iterator[Draft]:
    """What one object of the input becomes: mostly one object, two for an inline provider."""
    api_version, kind = text_of(given.content.get("apiVersion")), text_of(given.content.get("kind"))
    notes = NoteList(given.notes)
    draft = Draft(given.origin, api_version, kind, given.content, notes)
    convert = _CONVERTERS.get((api_version, kind))
    if convert is None:
        unserved = unserved_version(api_version, kind)
        draft.is_foreign = unserved is None
        if unserved is not None:
            notes.fail("apiVersion", unserved)
        elif not options.keep_others:
            notes.warn("", _skipped_text(api_version, kind))
        yield draft
        return
    fail_on_misspelt_fields(kind, given.content, notes)
    if notes.failed:
        yield draft
        return
    try:
        converted = convert(converted_metadata(given.content, notes), given.content, options, notes)
    except NotConvertible as error:
        notes.fail(error.path, str(error))
        yield draft
        return
    if isinstance(converted, ConvertedPool):
        yield Draft(given.origin, api_version, kind, converted.pool, notes, converted.kubelet)
        if converted.inline_class is not None:
            yield Draft(given.origin, api_version, kind, converted.inline_class, NoteList())
    else:
        yield Draft(given.origin, api_version, kind, converted, notes)


def _skipped_text(api_version: str, kind: str) -> str:
    if not kind:
        return "skipped: kind is missing; expected a Kubernetes object with apiVersion and kind"
    return f"skipped: {api_version or 'no apiVersion'} {kind} is no kind of Karpenter that is converted"


def _complete_claims(drafts: Sequence[Draft]) -> None:
    """NodeClaims of ``v1beta1`` take their age limit from their NodePool (API-717)."""
    expiry_by_pool = {draft.name: _expiry(draft) for draft in drafts if draft.is_a("NodePool")}
    for draft in drafts:
        if draft.is_a("NodeClaim") and draft.api_version == "karpenter.sh/v1beta1":
            metadata = object_field(draft.content, "metadata", "")
            pool = text_field(object_field(metadata, "labels", "metadata"), "karpenter.sh/nodepool")
            spec = {"expireAfter": expiry_by_pool.get(pool, _DEFAULT_EXPIRY)} | object_field(draft.content, "spec", "")
            draft.content = {**draft.content, "spec": spec}


def _expiry(pool: Draft) -> str:
    template = object_field(object_field(pool.content, "spec", ""), "template", "spec")
    return text_field(object_field(template, "spec", "spec.template"), "expireAfter") or _DEFAULT_EXPIRY


def _finish(draft: Draft, options: ConversionOptions) -> None:
    """Bring the object into the schema of ``v1`` and check it as a server would."""
    kind = _V1_KINDS[text_of(draft.content.get("kind"))]
    if kind.name == kinds.EC2_NODE_CLASS.name:
        draft.content = node_classes.with_role(draft.content, options, draft.notes)
    schema = crds.schema(kind.type)
    for finding in unknown_field_findings(schema, kinds.without_nulls(draft.content)):
        draft.notes.warn(finding.path, finding.message.replace("would be dropped", "is dropped"))
    content = {name: draft.content[name] for name in ("apiVersion", "kind", "metadata", "spec")}
    draft.content = cast(Json, _fitted(schema, content))
    if not draft.name:
        draft.notes.fail("metadata.name", "is missing; expected the name of the object")
    for finding in runtime_validation.admit(kind, draft.content):
        draft.notes.fail(finding.path, finding.message)
    if not draft.notes.failed:
        for finding in _advice(kind, draft.content):
            draft.notes.inform(finding.path, finding.message)


def _fitted(schema: Schema, value: object) -> object:
    """The value without nulls and unknown fields, scalars as text where the schema has text (API-830)."""
    if isinstance(value, list):
        return [_fitted(cast(Schema, schema.get("items", {})), element) for element in value]
    if isinstance(value, dict):
        properties = cast("dict[str, Schema]", schema.get("properties", {}))
        of_members = schema.get("additionalProperties")
        members = cast(Schema, of_members) if isinstance(of_members, dict) else {}
        return {
            name: _fitted(properties.get(name, members), member)
            for name, member in value.items()
            if member is not None and (name in properties or "properties" not in schema)
        }
    return text_of(value) if schema.get("type") == "string" and isinstance(value, bool | int | float) else value


def _advice(kind: Kind[Wire], content: Json) -> Iterator[Finding]:
    """What the owner of the converted object should know: why it cannot be used as it stands, budgets without effect."""
    try:
        obj = kind.decode(msgspec.json.encode(content))
    except msgspec.ValidationError as error:
        yield Finding("", "decode", decoding_text(error))
        return
    if isinstance(obj, NodePool):
        yield from runtime_validation.validate_node_pool(obj)
    if isinstance(obj, NodePool | NodeClaim | EC2NodeClass):
        yield from runtime_validation.advise_object(obj)
