"""Subscriptions, for the worker that serves them and for the commands that manage them: options, and records of the
state bucket.
"""
