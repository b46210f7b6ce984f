"""The copy of existing rows: page ranges of all tables, read in Spark tasks under one snapshot, published unchanged.

``snapshot`` names the steps: ``preparation`` writes the tables to copy into the ledger (by ``copy_state``), then rounds
follow. A round exports a snapshot (``export``), cuts the tables into page ranges (``plan``) and hands these out
(``schedule``), a few at a time as one Spark job (``spark_job``). Its task runs ``copy_task`` with
``copy_task_messages`` in and out: a range is read (``range_reader``) and stored (``range_publisher``). The outcome goes
to ``table_progress``, which users see too.
"""
