"""SQL pipelines: the rows of a query, read again and again, each time from where the run before ended.

``pipeline_run`` names the steps of a run. A ``pipeline`` defines what is read; ``query_reader`` asks the server for its
columns and where to cut (``key_ranges`` writes the SQL); ``late_rows`` measures up to where no row can come late;
``range_copy`` has the ranges read by ``replicator.snapshot``'s tasks into the group's snapshot stream; ``resumption``
is what is left of a run that was interrupted, ``wish_watch`` what users request for one. Its records are in
``shared.pipelines``.
"""
