"""PostgreSQL's own tests, run with groups of pgsluice where PostgreSQL has subscriptions: ``make test-postgres``.

The files come from Debian's source packages when the tests run (``sources``); nothing of them is part of this project. What is
known to differ stands, each with a reason, in ``known_differences.yaml``. What differs and is not listed fails, and so does what
is listed and no longer differs.
"""
