"""Alerts about a group, without another system that watches it.

`conditions` derives the problems from `facts`; `alert_state` decides what to send, and when to repeat it; `delivery`
sends it; `alert_watch` does all of that in a process of the group, one at a time.
"""
