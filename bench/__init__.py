"""Measurements, not tests: `make bench` prints figures and, where there is a target, the ratio to it."""
