"""Every metric there is, each once: the reference page is made of these declarations, and a real scrape is held against them.

Names follow Prometheus: base units, ``_total`` for what only grows. A metric whose fact is not known has no sample, rather than a
zero that looks like good news.
"""

from __future__ import annotations

from pgsluice.shared.metrics.metric import Metric, MetricKind, Shown

_GAUGE, _COUNTER, _HISTOGRAM = MetricKind.GAUGE, MetricKind.COUNTER, MetricKind.HISTOGRAM
_P, _W, _BOTH = Shown.REPLICATOR, Shown.WORKER, Shown.BOTH

WAL_STATUSES = ("reserved", "extended", "unreserved", "lost")
"""Values of pg_replication_slots."""

# --- of both processes -----------------------------------------------------------------------------------------------------

BUILD_INFO = Metric("pgsluice_build_info", _GAUGE, "1; the program's version is a label", _BOTH, ("version",))
ACTIVITY = Metric(
    "pgsluice_activity",
    _GAUGE,
    "1 for the state of this process, 0 for the rest: starting (a worker that waits for its lease too), working, paused, ending",
    _BOTH,
    ("activity",),
)
LAST_PROGRESS = Metric(
    "pgsluice_last_progress_timestamp_seconds",
    _GAUGE,
    "When the work moved last, or was looked for and not found, as Unix time; /healthz judges by its age",
    _BOTH,
)
WAITING = Metric(
    "pgsluice_waiting",
    _GAUGE,
    "1 for the cause of the failure that is waited for and tried again, 0 for every other cause",
    _BOTH,
    ("cause",),
)
WAITING_SECONDS = Metric(
    "pgsluice_waiting_seconds", _GAUGE, "For how long a failure has been tried again; 0 while nothing fails", _BOTH
)
RECONNECTS = Metric(
    "pgsluice_reconnects_total",
    _COUNTER,
    "Connections opened again since the process began, to the source (peer=source: sessions of the stream of changes) or to NATS "
    "(peer=nats)",
    _BOTH,
    ("peer",),
)

# --- of the replicator: the source -----------------------------------------------------------------------------------------

SLOT_LAG_BYTES = Metric(
    "pgsluice_slot_lag_bytes", _GAUGE, "WAL between the slot's confirmed_flush_lsn and the end of the source's WAL", _P
)
SLOT_RETAINED_WAL_BYTES = Metric(
    "pgsluice_slot_retained_wal_bytes",
    _GAUGE,
    "WAL that the source keeps on its disk for the slot, from restart_lsn to where the source is",
    _P,
)
SLOT_SAFE_WAL_BYTES = Metric(
    "pgsluice_slot_safe_wal_bytes",
    _GAUGE,
    "WAL that the source can still write before the slot is in danger; absent without max_slot_wal_keep_size",
    _P,
)
SLOT_CONFIRMED_LSN = Metric("pgsluice_slot_confirmed_lsn", _GAUGE, "confirmed_flush_lsn as a number of bytes", _P)
SLOT_ACTIVE = Metric("pgsluice_slot_active", _GAUGE, "1 while a process of the source reads the slot, else 0", _P)
SLOT_WAL_STATUS = Metric(
    "pgsluice_slot_wal_status",
    _GAUGE,
    "1 for the slot's wal_status, 0 for the others: reserved, extended, unreserved (about to be lost), lost",
    _P,
    ("status",),
)
SLOT_SPILLED_BYTES = Metric(
    "pgsluice_slot_spilled_bytes_total",
    _COUNTER,
    "Bytes that the source wrote to its disk while it decoded transactions that exceed logical_decoding_work_mem",
    _P,
)
SLOT_SPILLED_TRANSACTIONS = Metric("pgsluice_slot_spilled_transactions_total", _COUNTER, "Such transactions", _P)
SOURCE_LAG_SECONDS = Metric(
    "pgsluice_source_lag_seconds",
    _GAUGE,
    "Age of the last published commit; 0 when the source reported nothing after it",
    _P,
)
SOURCE_OLDEST_TRANSACTION_SECONDS = Metric(
    "pgsluice_source_oldest_transaction_seconds",
    _GAUGE,
    "Age of the oldest open transaction of the source that has written: it holds WAL. Absent when the role may not know it "
    "(GRANT pg_read_all_stats)",
    _P,
)

# --- of the replicator: the stream -----------------------------------------------------------------------------------------

PUBLISHED_CHANGES = Metric("pgsluice_published_changes_total", _COUNTER, "Changes published since the process began", _P)
PUBLISHED_MESSAGES = Metric("pgsluice_published_messages_total", _COUNTER, "Messages that hold them", _P)
PUBLISHED_BYTES = Metric("pgsluice_published_bytes_total", _COUNTER, "Bytes of their bodies, before compression", _P)
PUBLISH_SECONDS = Metric("pgsluice_publish_seconds", _HISTOGRAM, "From sending a message to JetStream's acknowledgement", _P)
PUBLISH_BLOCKED_SECONDS = Metric(
    "pgsluice_publish_blocked_seconds_total",
    _COUNTER,
    "For how long nothing was received, because the window of unacknowledged messages was full (cause=window) or the stream was "
    "(cause=stream_full)",
    _P,
    ("cause",),
)
STREAM_BYTES = Metric("pgsluice_stream_bytes", _GAUGE, "Size of a stream: changes, snapshot or dead", _P, ("stream",))
STREAM_MAX_BYTES = Metric("pgsluice_stream_max_bytes", _GAUGE, "Its largest allowed size", _P, ("stream",))
STREAM_MESSAGES = Metric("pgsluice_stream_messages", _GAUGE, "Messages in it", _P, ("stream",))

# --- of the replicator: the group ------------------------------------------------------------------------------------------

DESIRED = Metric(
    "pgsluice_desired",
    _GAUGE,
    "1 for the desired state of a unit (replicator, worker.NAME), 0 for the rest: running, paused, stopped",
    _P,
    ("unit", "state"),
)
STATE = Metric(
    "pgsluice_state",
    _GAUGE,
    "1 for the state of a unit, 0 for the rest, as status shows it: draft, starting, copying, running, pausing, paused, failing, "
    "failed, stopping, stopped, finished, unknown (it stopped reporting)",
    _P,
    ("unit", "state"),
)
UNIT_SILENCE_SECONDS = Metric(
    "pgsluice_unit_silence_seconds",
    _GAUGE,
    "Time since the last report of a unit's process: above 30 it has ended, is frozen, or cannot reach NATS. Absent if it "
    "reported its end or was never started",
    _P,
    ("unit",),
)
COPY_TABLES = Metric(
    "pgsluice_copy_tables",
    _GAUGE,
    "Tables of the copy by phase: init, data_sync, finished_copy, errored, left",
    _P,
    ("phase",),
)
COPY_ROWS = Metric("pgsluice_copy_rows_total", _COUNTER, "Rows of the table's newest copy that are published", _P, ("table",))
COPY_BYTES = Metric("pgsluice_copy_bytes_total", _COUNTER, "The same of all tables, in bytes of COPY text", _P)
COPY_RANGES = Metric(
    "pgsluice_copy_ranges",
    _GAUGE,
    "Page ranges of a table's newest copy: done, or left",
    _P,
    ("table", "state"),
)
COPY_SNAPSHOT_SECONDS = Metric(
    "pgsluice_copy_snapshot_seconds",
    _GAUGE,
    "For how long the copy's snapshot has been open at the source: VACUUM removes nothing newer. Absent without one",
    _P,
)

# --- of a worker -----------------------------------------------------------------------------------------------------------

APPLY_LAG_MESSAGES = Metric("pgsluice_apply_lag_messages", _GAUGE, "Messages of the stream that are not applied", _W)
APPLY_LAG_BYTES = Metric("pgsluice_apply_lag_bytes", _GAUGE, "Bytes of their bodies, before compression", _W)
APPLY_LAG_SECONDS = Metric(
    "pgsluice_apply_lag_seconds", _GAUGE, "For how long the first of them has been in the stream; 0 when there is none", _W
)
COMMIT_TO_APPLIED_SECONDS = Metric(
    "pgsluice_commit_to_applied_seconds",
    _HISTOGRAM,
    "From the commit at the source to the commit at the sink, by the clocks of both; at most 100 source commits of a batch",
    _W,
)
BATCH_SECONDS = Metric(
    "pgsluice_batch_seconds",
    _HISTOGRAM,
    "Time of a batch: plan (finding its messages), write (tasks), commit (the sink). The next batch may be written meanwhile",
    _W,
    ("stage",),
)
BATCH_CHANGES = Metric("pgsluice_batch_changes", _HISTOGRAM, "Source changes, or copied rows, of a batch", _W)
BATCH_BYTES = Metric("pgsluice_batch_bytes", _HISTOGRAM, "Bytes of a batch's message bodies, before compression", _W)
APPLIED_CHANGES = Metric(
    "pgsluice_applied_changes_total",
    _COUNTER,
    "Changes that reached the sink, by the table that they go to, after rules and routes, and by operation: insert, update, "
    "delete, truncate, or copy for a copied row",
    _W,
    ("table", "operation"),
)
FILTERED_CHANGES = Metric(
    "pgsluice_filtered_changes_total",
    _COUNTER,
    "Changes, or copied rows, that rules and routes left out, by the source's table",
    _W,
    ("table",),
)
MISSING_ROWS = Metric(
    "pgsluice_missing_rows",
    _GAUGE,
    "Changes that met no row in the sink since the table was copied, though no filter and no route leaves rows out, by the table "
    "that they go to and by operation: update, delete",
    _W,
    ("table", "operation"),
)
BATCH_RETRIES = Metric(
    "pgsluice_batch_retries_total", _COUNTER, "Batches that failed for a passing cause and were tried again", _W, ("cause",)
)
DEAD_LETTERS = Metric(
    "pgsluice_dead_letters",
    _GAUGE,
    "Changes that could not be applied: dead, behind (blocked: an earlier change of their row is dead), replaying (asked "
    "to be applied after all)",
    _W,
    ("state",),
)
DEAD_LETTERS_LIMIT = Metric("pgsluice_dead_letters_limit", _GAUGE, "max-dead-letters: with one more the worker stops", _W)
DEAD_LETTERS_TOTAL = Metric(
    "pgsluice_dead_letters_total", _COUNTER, "Changes that became dead letters since the process began", _W
)
JVM_HEAP_BYTES = Metric("pgsluice_jvm_heap_bytes", _GAUGE, "Heap of Spark's JVM: used, max", _W, ("area",))
PYTHON_WORKERS_RSS_BYTES = Metric(
    "pgsluice_python_workers_rss_bytes",
    _GAUGE,
    "Resident memory of the Python processes that run Spark's tasks on this machine, shared pages counted in each",
    _W,
)

SEARCH_ITEMS = Metric(
    "pgsluice_search_items_total",
    _COUNTER,
    "Documents sent to a search server: indexed, deleted, stale (it has a newer one), retried (not taken yet), dead (refused)",
    _W,
    ("outcome",),
)
SEARCH_NULLED = Metric(
    "pgsluice_search_nulled_total",
    _COUNTER,
    "Values that became null in documents because JSON or a date has no word for them: NaN, infinity",
    _W,
)
SEARCH_BULK_SECONDS = Metric("pgsluice_search_bulk_seconds", _HISTOGRAM, "Time of a bulk request", _W)
SEARCH_MGETS = Metric(
    "pgsluice_search_mget_total", _COUNTER, "Requests for documents that an update left values out of, to complete them", _W
)

SUBSCRIPTIONS = Metric(
    "pgsluice_subscriptions",
    _GAUGE,
    "Subscriptions: live (in step with the worker), behind (catching up), failing (their receiver takes no request), paused",
    _W,
    ("state",),
)
SUBSCRIPTION_EVENTS = Metric(
    "pgsluice_subscription_events_total",
    _COUNTER,
    "Events that receivers accepted, by state: live or behind",
    _W,
    ("lane",),
)
SUBSCRIPTION_REQUESTS = Metric(
    "pgsluice_subscription_requests_total", _COUNTER, "Requests to receivers: accepted, failed", _W, ("outcome",)
)
SUBSCRIPTION_BEHIND_MESSAGES = Metric(
    "pgsluice_subscription_behind_messages",
    _GAUGE,
    "Lag in messages of the slowest receiver that is not paused, relative to the worker",
    _W,
)
SUBSCRIPTION_REREAD_MESSAGES = Metric(
    "pgsluice_subscription_reread_messages_total", _COUNTER, "Messages that were read again for receivers that catch up", _W
)

KAFKA_TRANSACTION_SECONDS = Metric(
    "pgsluice_kafka_transaction_seconds",
    _HISTOGRAM,
    "Time of a committed batch in Kafka, from the beginning of its transaction until it was committed",
    _W,
)
KAFKA_TRANSACTIONS = Metric(
    "pgsluice_kafka_transactions_total",
    _COUNTER,
    "Batches handed to Kafka: committed, given_up (the brokers keep nothing of it, and it is tried again or stops the worker)",
    _W,
    ("outcome",),
)
KAFKA_RECORDS = Metric("pgsluice_kafka_records_total", _COUNTER, "Records of batches that Kafka committed", _W)

# --- of a worker of a SQL pipeline's group ---------------------------------------------------------------------------------

RUN_STATE = Metric(
    "pgsluice_run_state",
    _GAUGE,
    "1 for the state of the pipeline's newest run, 0 for the rest: reading, interrupted, paused, failed, finished, cancelled, "
    "abandoned",
    _W,
    ("pipeline", "state"),
)
RUN_ROWS = Metric(
    "pgsluice_run_rows_total",
    _COUNTER,
    "Rows of all runs of the pipeline that have ended: read (they are in the stream), dead (a step failed on them), deleted (the "
    "query gave them no longer, when target and query were compared)",
    _W,
    ("pipeline", "outcome"),
)
RUN_SECONDS = Metric(
    "pgsluice_run_seconds",
    _GAUGE,
    "Time of the newest finished run: plan, read (until the stream had all rows), apply (from then until every worker "
    "had applied them; absent until that is known)",
    _W,
    ("pipeline", "stage"),
)
RUN_HORIZON_SECONDS = Metric(
    "pgsluice_run_horizon_seconds",
    _GAUGE,
    "For how long the source's oldest transaction was open when the newest run began: so much the next run reads again. Absent "
    "where it is not measured",
    _W,
    ("pipeline",),
)
RUN_LAST_SUCCESS = Metric(
    "pgsluice_run_last_success_timestamp_seconds", _GAUGE, "When a run was finished last, as Unix time", _W, ("pipeline",)
)
RUN_LATE_SECONDS = Metric(
    "pgsluice_run_late_seconds",
    _GAUGE,
    "Delay of a scheduled run that no process executes, or that was not done when the next one was due; else 0. "
    "Absent without a schedule, and while the pipeline is paused",
    _W,
    ("pipeline",),
)

METRICS: tuple[Metric, ...] = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
"""All metrics as declared above."""
