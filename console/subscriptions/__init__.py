"""Subscriptions for users: subscribing with its challenge, pausing, and the state of each."""
