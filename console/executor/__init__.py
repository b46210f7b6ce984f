"""Executors: the holder of a pipeline's lease begins its runs, by schedule and on request.

``ticks`` computes the times of a schedule, and their outcomes; ``run_executor`` is one pipeline's executor, and starts
``pgsluice run`` as its child; ``executors`` runs all pipelines' executors, and ``executor_commands`` ``pgsluice
schedule``.
"""
