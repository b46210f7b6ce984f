"""Steps of a pipeline, applied to the rows of its query before they are published.

They run where the query is read, between COPY and the stream: so what the stream holds are rows of the target's table
as any other, and workers, rules and sinks know nothing of steps. ``step`` is a pipeline's declaration; ``step_chain``
imports the functions, determines their columns, and applies them to Arrow batches; ``block_steps`` does that with COPY
text.
"""
