"""Access to an API server: the protocol in three small parts, and its implementations.

Other packages depend on ``protocol``; ``client`` talks to a real cluster and ``informer`` keeps a list current by watching.
The in-memory API server is in ``simulation.apiserver``. Nothing here depends on what a NodePool means.
"""
