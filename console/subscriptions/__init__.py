"""Subscriptions as people see them: subscribing with its challenge, pausing, and how each fares."""
