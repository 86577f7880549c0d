"""Karpenter in Python: a Kubernetes node autoscaler that decides by price and explains itself."""

__version__ = "0.1.0"
