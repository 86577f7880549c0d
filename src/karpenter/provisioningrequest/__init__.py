"""ProvisioningRequests of Kueue (feature gate GangScheduling): capacity for pods to come, all of it or none.

``request_pods`` builds the virtual pods of a request, ``request_decision`` decides its conditions, and ``request_controller``
keeps both up to date.
"""
