"""A ``ConversionReview`` of ``apiextensions.k8s.io/v1``: objects that an API server needs in another version, and the answer."""

from __future__ import annotations

import msgspec

from karpenter.conversion.json_fields import Json
from karpenter.conversion.options import ConversionOptions
from karpenter.conversion.served_versions import converted


class _Request(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    uid: str
    desired_api_version: str = msgspec.field(name="desiredAPIVersion")
    objects: tuple[Json, ...] = ()


class _Review(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    request: _Request


def answer_review(body: bytes, options: ConversionOptions) -> bytes:
    """The review with its answer: every object in the desired version, in the same order.

    Raises ``msgspec.DecodeError`` (or its ``ValidationError``) for a body that is no review.
    """
    request = msgspec.json.decode(body, type=_Review).request
    objects = [converted(content, request.desired_api_version, options) for content in request.objects]
    return msgspec.json.encode(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "ConversionReview",
            "response": {"uid": request.uid, "convertedObjects": objects, "result": {"status": "Success"}},
        }
    )
