"""Random schemas with foreign keys of every action, their twins at a target, and random loads whose every commit is known.

``random_schema`` makes the tables, ``random_twin`` what a target makes of them, ``schema_load`` the transactions and what the
tables were like after each, ``twin_audit`` finds what is wrong at the target.
"""
