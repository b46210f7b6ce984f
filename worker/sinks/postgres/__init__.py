"""The Postgres sink: folded changes are staged by tasks and merged by the driver, in one transaction with the position.

From the bottom: ``options`` are its settings, ``target`` is the target database and ``fold`` compacts a partition's
changes; ``own`` are pgsluice's own tables there; ``merge`` stages and merges; ``target_tables`` and ``sessions`` keep
state between batches; ``copy_load`` loads copied rows; ``writer`` is the task's side and ``sink`` the driver's. Each
may import the ones before it.

piece      a set of rows of one table to which one kind of statement applies (``fold.piece``)
round      pieces that touch different rows; a partition's rounds are merged in order
stage      a table that holds a piece's rows until they are merged: an unlogged one of a task, or a temporary one of the driver
parked     COPY text that waits in one table at the target, where there would be too many stages (``own.parked_text``)
labelled   of rows: with a number and a position, so that refused ones can be named (``fold.blamed_positions``)
"""
