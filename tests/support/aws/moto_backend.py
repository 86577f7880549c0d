"""moto in this process: forwards requests unchanged, and makes typed calls for the double."""

from __future__ import annotations

import json
import os
from threading import Lock
from typing import Any

from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from moto.backends import get_backend
from moto.core.model import ServiceModel
from moto.core.utils import get_service_model
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.datastructures import Headers
from werkzeug.test import EnvironBuilder, run_wsgi_app
from werkzeug.wrappers import Request, Response

from support.aws.wire import Fields, Refusal

ACCOUNT = "123456789012"
# The double has its own images; building those of moto takes seconds at every reset.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"


class Moto:
    """moto's services for one region. moto's state is global to the process: two instances would share it."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._lock = Lock()
        self._app = DomainDispatcherApplication(create_backend_app)

    def reset(self) -> None:
        """Clear the state of all services."""
        with self._lock:
            for service in ("ec2", "iam", "ssm", "sqs", "events", "eks", "sts"):
                for account in get_backend(service).values():
                    for backend in list(account.values()):
                        backend.reset()

    def pass_on(self, request: Request) -> Response:
        """moto's answer to a request."""
        environ = EnvironBuilder(
            path=request.path,
            method=request.method,
            query_string=request.query_string.decode(),
            headers=Headers(request.headers.items()),
            data=request.get_data(),
            base_url=request.host_url,
        ).get_environ()
        return self._run(environ)

    def _run(self, environ: dict[str, Any]) -> Response:
        body, status, headers = run_wsgi_app(self._app, environ, buffered=True)
        return Response(b"".join(body), status=status, headers=headers)

    def ask(self, service: str, operation: str, parameters: Fields | None = None) -> Fields:
        """Call an operation with the field names of the service model. Raises ``Refusal``."""
        model: ServiceModel = get_service_model(service)
        operation_model = model.operation_model(operation)
        protocol = str(model.protocol)
        request = create_serializer(protocol, False).serialize_to_request(parameters or {}, operation_model)
        signature = (
            f"AWS4-HMAC-SHA256 Credential=double/20260101/{self.region}/{service}/aws4_request, SignedHeaders=host"
        )
        headers = Headers([*request["headers"].items(), ("Authorization", signature)])
        builder = EnvironBuilder(
            path=request["url_path"],
            method=request["method"],
            query_string=request["query_string"] or None,
            headers=headers,
            data=request["body"],
            base_url=f"http://{service}.{self.region}.amazonaws.com",
        )
        written = self._run(builder.get_environ())
        answer = {"status_code": written.status_code, "headers": dict(written.headers), "body": written.get_data()}
        parsed: Fields = create_parser(protocol).parse(answer, operation_model.output_shape)
        if written.status_code >= 400:
            error = parsed.get("Error", {})
            raise Refusal(error.get("Code", ""), error.get("Message", json.dumps(error)), written.status_code)
        parsed.pop("ResponseMetadata", None)
        return parsed
