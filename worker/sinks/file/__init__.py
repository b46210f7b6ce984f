"""The file sink: JSON lines or Parquet in a directory, exactly once.

``sink`` is the driver's side, ``formats`` holds the formats and the tasks' code. A task encodes its partition (``rows``
for Parquet) and leaves large pieces in a scratch directory next to the files; a receipt names the place (``scratch``).
The driver's commit appends the pieces in commit order to the file in progress (``appending``), syncs it, and moves the
position file (``applied_position``) by a rename. Bytes beyond the position are cut off before anything is appended.
``output_directory`` names files, and finishes full or old ones; for Parquet ``formats`` does.
"""
