"""``pgsluice server``: the REST API and the page, for groups whose processes run wherever they run.

It controls nothing itself: a command becomes a record in the broker that the units apply, and its views are derived
from their records. So a dead server stops nothing.
"""
