"""The endpoint: one HTTP server for EC2, IAM, SSM, Pricing, SQS, EKS and the other services, in its own thread.

In a test: ``with Double() as aws: ...`` and ``aws.url`` as ``AWS_ENDPOINT_URL``. Stand-alone:
``python -m support.aws.double --port 4566``, then use ``control`` over HTTP: POST a JSON object of arguments to
``/_double/<method>``. moto's state is global to the process, so a process has one double at a time.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from threading import RLock, Thread
from types import TracebackType
from typing import Any

import structlog
from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import BaseWSGIServer, make_server
from werkzeug.wrappers import Request, Response

from support.aws import wire
from support.aws.control import Control
from support.aws.faults import ConnectionLost, Faults
from support.aws.moto_backend import Moto
from support.aws.records import Calls, ClientTokens, RecordedCall
from support.aws.region import Region
from support.aws.wire import Call, Fields, Refusal

REGION = "us-west-2"
KUBERNETES = ("1.32", "1.34", "1.35", "1.36")
_CONTROL = "/_double/"
#: Answers that are expensive to encode and change only with types and prices. The start time of spot prices does not matter.
_CACHED_OPERATIONS = frozenset(
    {"DescribeInstanceTypes", "DescribeInstanceTypeOfferings", "DescribeSpotPriceHistory", "GetProducts"}
)
_START_TIME = "StartTime"
_log = structlog.get_logger()


class _Handler(MotoRequestHandler):
    """Logs no requests."""

    def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002 -- the base class's name
        return


class Double:
    """A double of AWS. ``now`` is seconds since the epoch."""

    def __init__(
        self, region: str = REGION, kubernetes: tuple[str, ...] = KUBERNETES, now: Callable[[], float] = time.time
    ) -> None:
        self._now = now
        self._lock = RLock()
        self._moto = Moto(region)
        self.region_name = region
        self.faults = Faults(now)
        self.region = Region(self._moto, kubernetes, now, self.faults.check_allowed)
        self.calls = Calls()
        #: The context in which each call is executed; may raise ``ConnectionLost``.
        self.around: Callable[[Call], AbstractContextManager[None]] = lambda call: nullcontext()
        self._tokens = ClientTokens()
        self._cached_answers: dict[str, tuple[bytes, int, dict[str, str]]] = {}
        self.control = Control(self.region, self.faults, self.calls, self.reset)
        self._server: BaseWSGIServer | None = None
        self._thread: Thread | None = None

    # -- start and stop -------------------------------------------------------------------------------------------------------

    def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        """Start serving."""
        self._moto.reset()
        self._server = make_server(host, port, self, threaded=True, request_handler=_Handler)
        self._thread = Thread(target=self._server.serve_forever, name="aws-double", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def __enter__(self) -> Double:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The endpoint URL."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.server_port}"

    def reset(self) -> None:
        """Restore the initial state: no instances, no faults, no recorded calls."""
        with self._lock:
            self.faults.reset()
            self.region.reset()
            self.calls.clear()
            self._tokens.reset()

    # -- requests -------------------------------------------------------------------------------------------------------------

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        """The WSGI application."""
        request = Request(environ)
        request.max_form_memory_size = None
        request.get_data(cache=True)
        try:
            response = self._respond(request)
        except ConnectionLost:
            # Closing the socket looks to the server as if the caller had disconnected.
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            response = Response()
        return response(environ, start_response)

    def _respond(self, request: Request) -> Response:
        if request.path.startswith(_CONTROL):
            return self._run_control(request)
        call = wire.read(request)
        if call is None:
            return self._moto.pass_on(request)
        time.sleep(self.faults.delay(call.operation))
        try:
            with self.around(call):
                response = self._execute(call, request)
        except Refusal as error:
            self._record(call, error.code)
            return wire.refusal(call, error)
        except ConnectionLost:
            self._record(call, "lost", lost=True)
            raise
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            _log.error("the double of AWS failed", operation=call.operation, stacktrace=trace)
            self._record(call, "InternalError")
            return wire.refusal(call, Refusal("InternalError", repr(error), 500))
        lost = self.faults.is_answer_lost(call.operation)
        self._record(call, wire.error_code(response), lost=lost)
        if lost:
            raise ConnectionLost
        return response

    def _execute(self, call: Call, request: Request) -> Response:
        with self._lock:
            self.faults.check(call)
            answer = self.region.find(call)
            if answer is not None:
                return self._handle(call, answer)
        return self._pass_to_moto(call, request)

    def _handle(self, call: Call, answer: Callable[[Fields], Fields]) -> Response:
        asked = {name: value for name, value in call.parameters.items() if name != _START_TIME}
        key = f"{call.operation} {asked} {self.region.instance_types.changed_prices}"
        if key in self._cached_answers:
            body, status, headers = self._cached_answers[key]
            return Response(body, status=status, headers=headers)
        result = self._tokens.find(call)
        if result is None:
            result = answer(call.parameters)
            self._tokens.keep(call, result)
        response = wire.answer(call, result)
        if call.operation in _CACHED_OPERATIONS:
            self._cached_answers[key] = (response.get_data(), response.status_code, dict(response.headers))
        return response

    def _pass_to_moto(self, call: Call, request: Request) -> Response:
        response = self._moto.pass_on(request)
        if call.service in ("ec2", "iam") and not call.operation.startswith(("Describe", "Get", "List")):
            self.region.network.forget()
        return response

    def _record(self, call: Call, code: str, *, lost: bool = False) -> None:
        self.calls.all.append(
            RecordedCall(call.service, call.operation, call.parameters, self._now(), code, lost, call.request_id)
        )

    def _run_control(self, request: Request) -> Response:
        name = request.path.removeprefix(_CONTROL)
        arguments = json.loads(request.get_data() or b"{}")
        try:
            with self._lock:
                result = self.control.do(name, arguments)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return _json({"error": str(error)}, 400)
        return _json({"result": result}, 200)


def _json(value: Mapping[str, object], status: int) -> Response:
    return Response(json.dumps(value, default=str), status=status, content_type="application/json")


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description="A double of AWS")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=4566)
    parser.add_argument("--region", default=REGION)
    asked = parser.parse_args()
    double = Double(asked.region)
    double.start(asked.port, asked.host)
    print(double.url, flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        double.stop()


if __name__ == "__main__":
    main()
