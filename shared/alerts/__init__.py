"""Telling people what is wrong with a group, without another system that watches it.

`conditions` derives what is wrong from `facts`; `alert_state` decides of what to tell, and when again; `delivery` tells it;
`alert_watch` does all of that in a process of the group, one at a time.
"""
