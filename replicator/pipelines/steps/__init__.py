"""Steps of a pipeline: what is done with the rows of its query before they are published.

They run where the query is read, between COPY and the stream: so what the stream holds are rows of the target's table as any
other, and workers, rules and sinks know nothing of steps. ``step`` is what a pipeline says; ``step_chain`` imports the functions,
finds out which columns they give, and applies them to Arrow batches; ``block_steps`` does that with COPY text.
"""
