"""Manifests of older Karpenter releases as objects of ``v1`` (API §§14-17): data in, data and notes out, no I/O.

``manifests.convert_manifests`` is the entry: it takes all objects of an input, because a kubelet configuration moves from the
NodePools to the EC2NodeClass they share, and an unlaunched NodeClaim takes its age limit from its NodePool.
"""
