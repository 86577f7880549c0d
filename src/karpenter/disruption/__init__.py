"""Disruption: which nodes go, and how.

``decide`` is pure; the controller, the queue and the backoff execute its commands.
"""
