"""AWS's wire formats, from botocore's service models: decodes requests, encodes answers.

The double's handlers are functions from a mapping to a mapping with AWS's field names; only this module handles XML,
query strings and JSON targets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4
from xml.sax.saxutils import escape

from botocore.exceptions import UnknownServiceError
from moto.core.parse import PROTOCOL_PARSERS
from moto.core.serialize import SerializationContext, get_serializer_class
from moto.core.utils import get_service_model
from werkzeug.wrappers import Request, Response

#: Parameters and answers, with the field names of the service model.
Fields = dict[str, Any]

#: Service names in signatures that differ from those of the models.
_SIGNED_AS = {"eventbridge": "events", "servicequotas": "service-quotas"}
_CREDENTIAL = re.compile(r"Credential=([^/]+)/[^/]+/([^/]+)/([^/]+)/aws4_request")
_CODE = re.compile(r'<Code>([^<]+)</Code>|"__type": *"(?:[^"#]*#)?([^"]+)"')
_FIRST_REFUSAL = 400
_JSON = "application/x-amz-json-1.1"


class Refusal(Exception):
    """An error response."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


@dataclass(frozen=True)
class Call:
    """A decoded request."""

    service: str
    operation: str
    parameters: Fields
    region: str
    access_key: str
    request_id: str = field(default_factory=lambda: str(uuid4()))

    @property
    def action(self) -> str:
        """The IAM action, such as ``ec2:CreateFleet``."""
        return f"{self.service}:{self.operation}"


def read(request: Request) -> Call | None:
    """The call of a request; None if no service model has it."""
    match = _CREDENTIAL.search(request.headers.get("Authorization", ""))
    if match is None:
        return None
    access_key, region, signed = match.groups()
    service = _SIGNED_AS.get(signed, signed)
    try:
        operation, path = _operation(service, request)
        parameters = _parameters(service, operation, request, path)
    except (KeyError, UnknownServiceError):
        return None
    return Call(service, operation, parameters, region, access_key)


def _operation(service: str, request: Request) -> tuple[str, dict[str, str]]:
    target = request.headers.get("X-Amz-Target")
    if target:
        return target.rpartition(".")[2], {}
    if "Action" in request.form:
        return request.form["Action"], {}
    model = get_service_model(service)
    for name in model.operation_names:
        http = model.operation_model(name).http
        path = _path_parameters(http["requestUri"], request.path)
        if http["method"] == request.method and path is not None:
            return name, path
    raise KeyError(request.path)


def _path_parameters(template: str, path: str) -> dict[str, str] | None:
    pieces = re.split(r"\{([^}]+)\}", template.partition("?")[0])
    # Only the last placeholder may contain slashes: an ARN at the end of a path does.
    patterns = [
        re.escape(piece)
        if index % 2 == 0
        else f"(?P<{piece.rstrip('+')}>{'.+' if index >= len(pieces) - 2 else '[^/]+'})"
        for index, piece in enumerate(pieces)
    ]
    fullmatch = re.fullmatch("".join(patterns), path)
    return None if fullmatch is None else fullmatch.groupdict()


def _parameters(service: str, operation: str, request: Request, path: dict[str, str]) -> Fields:
    model = get_service_model(service).operation_model(operation)
    protocol = _protocol(service)
    parsed = PROTOCOL_PARSERS[protocol](model, map_type=dict).parse(
        {
            "method": request.method,
            "values": request.values,
            "headers": request.headers,
            "body": request.get_data(),
            "url_path": request.path,
            "url_params": path,
        }
    )
    return {key: value for key, value in parsed.items() if value is not None}


def _protocol(service: str) -> str:
    return str(get_service_model(service).protocol)


def answer(call: Call, result: Mapping[str, object]) -> Response:
    """Encode the answer to a call."""
    model = get_service_model(call.service).operation_model(call.operation)
    serializer = get_serializer_class(call.service, _protocol(call.service))
    written = serializer(model, context=SerializationContext(call.request_id)).serialize(result)
    headers = {**written["headers"], "x-amzn-RequestId": call.request_id}
    return Response(written["body"], status=written["status_code"], headers=headers)


def refusal(call: Call, error: Refusal) -> Response:
    """Encode an error response to a call."""
    headers = {"x-amzn-RequestId": call.request_id}
    code, message = escape(error.code), escape(error.message)
    protocol = _protocol(call.service)
    if protocol == "ec2":
        body = (
            f'<?xml version="1.0" encoding="UTF-8"?><Response><Errors><Error><Code>{code}</Code><Message>{message}</Message>'
            f"</Error></Errors><RequestID>{call.request_id}</RequestID></Response>"
        )
        return Response(body, status=error.status, headers=headers, content_type="text/xml;charset=UTF-8")
    if protocol == "query":
        body = (
            f"<ErrorResponse><Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>"
            f"<RequestId>{call.request_id}</RequestId></ErrorResponse>"
        )
        return Response(body, status=error.status, headers=headers, content_type="text/xml")
    text = json.dumps({"__type": error.code, "message": error.message})
    headers["x-amzn-errortype"] = error.code
    return Response(text, status=error.status, headers=headers, content_type=_JSON)


def error_code(response: Response) -> str:
    """The error code of a response of moto; empty for success."""
    if response.status_code < _FIRST_REFUSAL:
        return ""
    text = response.get_data(as_text=True)
    match = _CODE.search(text)
    return match.group(1) or match.group(2) if match else str(response.status_code)
