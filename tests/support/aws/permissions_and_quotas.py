"""Answers that moto lacks and `karpenter doctor` needs: simulated policies, access entries, quotas."""

from __future__ import annotations

from collections.abc import Callable

from support.aws.wire import Fields, Refusal

#: The default vCPU quota of an account.
_USUAL_QUOTA = 1024.0


class PermissionsAndQuotas:
    """Answers about permissions, access entries of clusters and quotas."""

    def __init__(self, check_allowed: Callable[[str], None]) -> None:
        self._check_allowed = check_allowed
        self.entries: dict[str, str] = {}
        self.has_entries = True
        self.quotas: dict[str, float] = {}

    def reset(self) -> None:
        """Initial state: everything is allowed, there are no access entries."""
        self.entries.clear()
        self.has_entries = True
        self.quotas.clear()

    def simulate(self, parameters: Fields) -> Fields:
        """SimulatePrincipalPolicy: every principal is denied what callers are denied."""
        return {
            "EvaluationResults": [
                {"EvalActionName": action, "EvalDecision": "allowed" if self._allows(action) else "implicitDeny"}
                for action in parameters["ActionNames"]
            ],
            "IsTruncated": False,
        }

    def _allows(self, action: str) -> bool:
        try:
            self._check_allowed(action)
        except Refusal:
            return False
        return True

    def access_entry(self, parameters: Fields) -> Fields:
        """DescribeAccessEntry."""
        principal = parameters["principalArn"]
        if not self.has_entries:
            text = "The cluster's authentication mode must be set to one of [API, API_AND_CONFIG_MAP] to perform this operation."
            raise Refusal("InvalidRequestException", text)
        kind = self.entries.get(principal)
        if kind is None:
            text = f"The specified principalArn could not be found: {principal}"
            raise Refusal("ResourceNotFoundException", text, 404)
        return {"accessEntry": {"clusterName": parameters["clusterName"], "principalArn": principal, "type": kind}}

    def quota(self, parameters: Fields) -> Fields:
        """GetServiceQuota."""
        code = parameters["QuotaCode"]
        value = self.quotas.get(code, _USUAL_QUOTA)
        return {"Quota": {"ServiceCode": parameters["ServiceCode"], "QuotaCode": code, "Value": value}}
