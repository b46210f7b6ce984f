"""Metrics, health and readiness of a process, and their export."""
