"""Karpenter's own end-to-end suites, built from its public Go module and run against this controller (`make conformance`)."""
