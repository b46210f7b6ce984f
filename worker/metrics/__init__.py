"""Metrics of a worker: its tasks' figures, its batches' times, and values that are read at a scrape."""
