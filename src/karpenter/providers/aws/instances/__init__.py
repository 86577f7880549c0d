"""Machines on EC2 once they are bought (AWS §11): reading, ending, tagging and collecting them.

Reads are cached and calls are batched, so that five hundred machines cost a handful of calls. Who a machine belongs to is told by
the NodeClaims' provider IDs alone; tags only help to find it.
"""
