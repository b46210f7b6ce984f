"""The file sink: JSON lines or Parquet in a directory, exactly once.

``sink`` is the driver's side, ``formats`` is what tasks do and which formats there are. A task encodes its partition
(``rows`` for Parquet) and leaves large pieces in a scratch directory beside the files; a receipt says where (``scratch``).
The driver's commit appends the pieces in commit order to the file in progress (``appending``), syncs it, and moves the
position file (``applied_position``) by a rename. What that does not count does not exist: it is cut off before anything is
appended. ``output_directory`` says what files are called, and what becomes of one that is full or old; for
Parquet ``formats`` does.
"""
