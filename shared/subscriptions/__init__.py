"""Subscriptions, for the worker that serves them and the commands that manage them: options, and records."""
