"""Dashboards and alerts: Grafana dashboards, Prometheus rules and the page about alerts, written by ``python -m monitoring``."""
