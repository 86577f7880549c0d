"""What botocore raises, as ``AwsError``: a code, one line that says how to mend it, and whether AWS may have acted all the same.

==========================================  =======================  ==========
what happened                               code                     may have been carried out
==========================================  =======================  ==========
AWS answered with an error                  the service's            if the status is 5xx
no credentials, or none could be had        ``NoCredentials``        no
the service is not reached                  ``NotConnected``         no
the answer did not come in time             ``Timeout``              yes
the connection broke, the answer is broken  ``ConnectionError``      yes
the request is not one AWS knows            ``InvalidRequest``       no
==========================================  =======================  ==========

A failed call is an ``AwsError`` like any other; that it knows its service is for the log (AWS-017).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from botocore import exceptions
from botocore.parsers import ResponseParserError

from karpenter.providers.aws.aws_errors import CONNECTION_ERROR_CODE, TIMEOUT_CODE, AwsCallError

NO_CREDENTIALS = "NoCredentials"
NOT_CONNECTED = "NotConnected"
INVALID_REQUEST = "InvalidRequest"

_NO_CREDENTIALS = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
    exceptions.TokenRetrievalError,
    exceptions.UnauthorizedSSOTokenError,
    exceptions.NoAuthTokenError,
    exceptions.ProfileNotFound,
)
#: Nothing was sent: there was no connection to send it over.
_NOT_CONNECTED = (
    exceptions.EndpointConnectionError,
    exceptions.ConnectTimeoutError,
    exceptions.ProxyConnectionError,
)
_NOT_SENT = (
    exceptions.ParamValidationError,
    exceptions.NoRegionError,
    exceptions.BaseEndpointResolverError,
    exceptions.EndpointProviderError,
    exceptions.InvalidRegionError,
)
_CREDENTIAL_CALLS = frozenset({"AssumeRole", "AssumeRoleWithWebIdentity", "GetRoleCredentials", "AssumeRoleWithSAML"})
#: Codes that mean that the credentials are the trouble, and what can be done.
_HINTS: Mapping[str, str] = {
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "RequestExpired"),
        "the credentials have expired: renew them, and check the machine's clock",
    ),
    **dict.fromkeys(
        ("InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure", "SignatureDoesNotMatch"),
        "AWS does not accept the credentials: check that they are of this account and partition, and the machine's clock",
    ),
    "OptInRequired": "the account is not subscribed to this service, or the region is not enabled",
}
_NO_CREDENTIALS_HINT = (
    "give the service account a role (IRSA or a pod identity association), or set AWS_PROFILE or AWS_ACCESS_KEY_ID"
)
_NOT_CONNECTED_HINT = "check the region, the network's way there, proxies and AWS_ENDPOINT_URL"


def error_from_botocore(error: Exception, service: str, operation: str) -> AwsCallError:
    """The error for what botocore raised. Anything it does not document is a bug of ours and raised again."""
    if isinstance(error, exceptions.ClientError):
        fault = _service_error(error, operation)
    elif isinstance(error, exceptions.BotoCoreError | ResponseParserError):
        fault = AwsCallError(*_code_and_message(error, service), operation=operation)
    else:
        raise error
    fault.service = service
    return fault


def timeout_error(service: str, operation: str, seconds: float) -> AwsCallError:
    """The error for a call whose time is over."""
    fault = AwsCallError(TIMEOUT_CODE, f"{service} did not answer within {seconds:g} s", operation=operation)
    fault.service = service
    return fault


def _service_error(error: exceptions.ClientError, operation: str) -> AwsCallError:
    answer = cast(Mapping[str, Mapping[str, object]], error.response)
    error_fields, about = answer.get("Error", {}), answer.get("ResponseMetadata", {})
    code, message = str(error_fields.get("Code", "Unknown")), str(error_fields.get("Message", ""))
    if error.operation_name in _CREDENTIAL_CALLS:
        text = f"{error.operation_name} was refused ({code}: {_single_line(message)}); check the role's trust policy"
        return AwsCallError(NO_CREDENTIALS, text, operation=operation)
    hint = _HINTS.get(code)
    return AwsCallError(
        code,
        f"{message} ({hint})" if hint else message,
        operation=operation,
        request_id=str(about.get("RequestId", "")),
        status=int(cast(int, about.get("HTTPStatusCode", 0))),
    )


def _code_and_message(error: Exception, service: str) -> tuple[str, str]:
    """Code and message of a call that got no answer from the service."""
    text = _single_line(str(error))
    if isinstance(error, _NO_CREDENTIALS):
        return NO_CREDENTIALS, f"{text}; {_NO_CREDENTIALS_HINT}"
    if isinstance(error, _NOT_CONNECTED):
        return NOT_CONNECTED, f"{text}; {_NOT_CONNECTED_HINT}"
    if isinstance(error, _NOT_SENT):
        return INVALID_REQUEST, text
    if isinstance(error, exceptions.ReadTimeoutError):
        return TIMEOUT_CODE, f"{service} did not answer in time: {text}"
    return CONNECTION_ERROR_CODE, text


def _single_line(text: str) -> str:
    return " ".join(text.split())
