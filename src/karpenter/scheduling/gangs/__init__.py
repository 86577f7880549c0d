"""Gangs in the pure engine: pods of which all get a place, or none."""
