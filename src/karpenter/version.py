"""The version of the package, for every layer; ``karpenter`` itself is the Python interface above all of them."""

__version__ = "0.1.0"
