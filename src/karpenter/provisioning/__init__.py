"""Provisioning: batch pending pods, solve, create NodeClaims, nominate the pods to their nodes."""
