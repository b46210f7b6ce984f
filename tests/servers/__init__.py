"""Real servers and real pgsluice processes, each in a private directory and on a free port.

Nothing outlives the Python process that started it: what is not closed is closed at exit, and when Python itself is killed
``reaper`` ends the processes and removes the directories.
"""

from tests.servers.nats import NatsServer
from tests.servers.nats_cluster import NatsCluster
from tests.servers.postgres import Database, PostgresServer
from tests.servers.program import PgsluiceProcess

__all__ = ["Database", "NatsCluster", "NatsServer", "PgsluiceProcess", "PostgresServer"]
