"""The file sink: JSON lines or Parquet in a directory, exactly once.

``sink`` is the driver's side, ``writing`` and ``parquet_rows`` are what tasks do. A task encodes its partition and leaves large pieces in a
``scratch`` directory beside the files; a receipt says where (``piece``). The driver's commit appends the pieces in commit order to the file in progress
(``sequence``), syncs it, and moves the ``position`` file, by a rename. What the position file does not count does not exist: it is cut off
before anything is appended. ``layout`` says what the files are called and what a format does with one that is finished.
"""

from worker.sinks.file.sink import FileSink

__all__ = ["FileSink"]
