"""``pgsluice server``: the REST API and the page, for groups whose processes run wherever they run.

It steers nothing itself: what it is told to do becomes a record in the broker that the units obey, and what it shows is derived
from their records. So a dead server stops nothing.
"""
