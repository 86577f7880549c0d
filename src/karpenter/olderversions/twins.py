"""The objects of ``v1`` that stand for one of an older kind: what ``karpenter convert`` makes of it (API-852 to API-855)."""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.api.label_domains import PROVISIONER_NAME
from karpenter.conversion.drafts import InputObject
from karpenter.conversion.json_fields import Json, object_field
from karpenter.conversion.manifests import convert_manifests
from karpenter.conversion.notes import Note, NoteLevel
from karpenter.conversion.options import ConversionOptions

#: On a twin: the older object it stands for.
CONVERTED_FROM = "compatibility.karpenter.sh/converted-from"


@dataclass(frozen=True, slots=True)
class Twins:
    """The twins of an older object: a NodePool, its class for an inline provider; or one class; or one NodeClaim."""

    objects: tuple[Json, ...]
    warnings: tuple[str, ...] = ()
    #: Why there are none; empty where there are.
    error: str = ""


def twins_of(content: Json, options: ConversionOptions) -> Twins:
    """The twins of an object as the API server has it, with ``apiVersion``, ``kind`` and ``uid``."""
    converted = convert_manifests([InputObject("", _as_written(content))], options)
    notes = [note for noted in converted.notes for note in noted.notes]
    if converted.failed:
        return Twins((), error="; ".join(_texts(notes, NoteLevel.ERROR)))
    return Twins(tuple(_tied(made, content) for made in converted.objects), tuple(_texts(notes, NoteLevel.WARN)))


def origin(content: Json) -> str:
    """How a twin names the older object: ``group/version/Kind/name``."""
    return f"{content['apiVersion']}/{content['kind']}/{object_field(content, 'metadata', '')['name']}"


def _as_written(content: Json) -> Json:
    """The object without what only a server writes."""
    metadata = object_field(content, "metadata", "")
    kept = {name: value for name, value in metadata.items() if name in ("name", "labels", "annotations")}
    return {**content, "metadata": kept}


def _texts(notes: list[Note], level: NoteLevel) -> list[str]:
    return [f"{note.path}: {note.text}" if note.path else note.text for note in notes if note.level is level]


def _tied(made: Json, content: Json) -> Json:
    metadata = object_field(made, "metadata", "")
    annotations = object_field(metadata, "annotations", "metadata") | {CONVERTED_FROM: origin(content)}
    owner = {
        "apiVersion": content["apiVersion"],
        "kind": content["kind"],
        "name": object_field(content, "metadata", "")["name"],
        "uid": object_field(content, "metadata", "")["uid"],
        "controller": True,
    }
    tied = {**made, "metadata": {**metadata, "annotations": annotations, "ownerReferences": [owner]}}
    return _with_provisioner_label(tied) if content["kind"] == "Provisioner" and made["kind"] == "NodePool" else tied


def _with_provisioner_label(pool: Json) -> Json:
    """Nodes keep the label by which workloads of that time select them (API-855)."""
    name = object_field(pool, "metadata", "")["name"]
    spec = object_field(pool, "spec", "")
    template = object_field(spec, "template", "spec")
    metadata = object_field(template, "metadata", "spec.template")
    labels = object_field(metadata, "labels", "spec.template.metadata") | {PROVISIONER_NAME: name}
    return {**pool, "spec": {**spec, "template": {**template, "metadata": {**metadata, "labels": labels}}}}
