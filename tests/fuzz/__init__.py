"""Fuzzing: every reader of untrusted input gets generated input, and refuses it in the way that it promises.

A target (``targets/``) feeds some readers with bytes. Each reader says which exceptions are its contract; anything else is a
finding, and so are an input that takes over five seconds, one that takes too much memory, and a value that is another one
after it was encoded and decoded again. ``make fuzz`` has atheris look for such inputs, guided by what lines they reach, and
schemathesis ask the server of the API; ``make test`` gives each target the inputs of ``corpus/`` once.

``python -m tests.fuzz pgoutput --seconds 60`` runs one target, and ``python -m tests.fuzz.renew_corpus`` makes the corpus anew.
"""
