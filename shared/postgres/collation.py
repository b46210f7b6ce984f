"""A collation's rules of comparison, in a form that can be compared between two servers."""

from __future__ import annotations

from typing import LiteralString

NONDETERMINISTIC: LiteralString = """
    CASE WHEN {0}.collisdeterministic THEN ''
         ELSE concat_ws(' ', {0}.collprovider, coalesce(to_jsonb({0}) ->> 'colllocale', to_jsonb({0}) ->> 'colliculocale',
                                                        {0}.collcollate),
                        to_jsonb({0}) ->> 'collicurules') END
"""
"""SQL for a row of pg_collation, which ``{0}`` names: provider, locale and rules of a nondeterministic one, "" of any other. The
locale has been in three columns: ``colllocale`` since PostgreSQL 17, ``colliculocale`` since 15."""
