"""Subscriptions, for those who serve them and for those who let people subscribe: options, and records of the state bucket."""
