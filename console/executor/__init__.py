"""Executors: whoever has the lease of a pipeline begins its runs, by the clock and for those who ask.

``ticks`` reckons out when a schedule has one, and what becomes of it; ``run_executor`` is one pipeline's executor, and starts
``pgsluice run`` as its child; ``executors`` are those of all pipelines, and ``executor_commands`` ``pgsluice schedule``.
"""
