"""Talking to an API server: the protocol in three small parts and what implements it.

``protocol`` is what the rest of the house programs against; ``client`` is a real cluster, ``memory`` an API server inside the
process, ``informer`` keeps a list current by watching. No decision is taken here and nothing here knows what a NodePool means.
"""
