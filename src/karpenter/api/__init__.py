"""Wire objects: the part of the Kubernetes and Karpenter APIs that this product reads and writes.

Everything here is a frozen, slim struct that decodes straight from JSON and drops unused fields; meaning
(quantities, requirements, validation) lives in ``model``. Nothing here does I/O, and nothing here imports another package.
"""
