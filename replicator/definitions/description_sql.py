"""The source's functions that describe a table (``describe``, ``columns``, ``partitions``, in short ``name``) and a ``type``.

The form of what they return is specified in ``shared/wire/definition.py``.
"""

from __future__ import annotations

from pgsluice.replicator.source.column_sql import COLLATION, NOT_NULL

NAME = """
CREATE OR REPLACE FUNCTION {name}(relation oid) RETURNS jsonb
    LANGUAGE plpgsql AS $pgsluice$
BEGIN
    RETURN (SELECT jsonb_build_object('oid', c.oid::bigint, 'schema', n.nspname, 'name', c.relname)
              FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = relation);
END
$pgsluice$
"""

DESCRIBE = """
CREATE OR REPLACE FUNCTION {describe}(relation oid, is_published boolean, made oid[]) RETURNS jsonb
    LANGUAGE plpgsql AS $pgsluice$
-- made: NULL, or the partitions that the command made. Then only these are listed, and default partitions beside them, whose
-- conditions they change: a migration that makes a thousand is not to write all of them a thousand times.
DECLARE
    below oid[] := ARRAY[]::oid[];
    told oid[];
    identity int2[];
BEGIN
    IF (SELECT c.relkind = 'p' FROM pg_class c WHERE c.oid = relation) THEN
        below := ARRAY(WITH RECURSIVE tree (oid) AS (
                           SELECT relation UNION SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid)
                       SELECT t.oid FROM tree t WHERE t.oid <> relation ORDER BY t.oid);
    END IF;
    told := below;
    IF made IS NOT NULL THEN
        told := ARRAY(WITH RECURSIVE tree (oid) AS (
                          SELECT m.oid FROM unnest(made) m (oid)
                           UNION
                          SELECT p.partdefid FROM unnest(made) m (oid) JOIN pg_inherits i ON i.inhrelid = m.oid
                            JOIN pg_partitioned_table p ON p.partrelid = i.inhparent WHERE p.partdefid <> 0
                           UNION
                          SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.oid)
                      SELECT t.oid FROM tree t WHERE t.oid = ANY(below) ORDER BY t.oid);
    END IF;
    identity := ARRAY(SELECT a.attnum FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
                       WHERE c.oid = relation AND a.attnum > 0 AND NOT a.attisdropped
                         AND (c.relreplident = 'f' OR EXISTS (
                                 SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
                                    AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1])
                                    AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident
                                                            ELSE false END))
                       ORDER BY a.attnum);
    RETURN {name}(relation) || (
        SELECT jsonb_build_object(
                   'relkind', c.relkind::text, 'filenode', c.relfilenode::bigint, 'replica_identity', c.relreplident::text,
                   'identity_columns', to_jsonb(identity), 'published', is_published,
                   'columns', {columns}(relation, below, is_published),
                   CASE WHEN made IS NULL THEN 'partitions' ELSE 'more_partitions' END, {partitions}(told))
          FROM pg_class c WHERE c.oid = relation);
END
$pgsluice$
"""

COLUMNS = f"""
CREATE OR REPLACE FUNCTION {{columns}}(relation oid, below oid[], is_published boolean) RETURNS jsonb
    LANGUAGE plpgsql AS $pgsluice$
-- What older rows have in a column that was added is noted where the rows are, so for a partitioned table in its partitions.
DECLARE
    primary_key int2[];
    listed int2[];
    takes_stored boolean;
BEGIN
    primary_key := ARRAY(SELECT k.attnum FROM pg_index i, unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY k (attnum, n)
                          WHERE i.indrelid = relation AND i.indisprimary ORDER BY k.n);
    -- Lists of columns are there since PostgreSQL 15; since 18 generated columns may be published.
    SELECT translate(to_jsonb(r) ->> 'prattrs', '[]', '{{{{}}}}')::int2[], to_jsonb(p) ->> 'pubgencols' = 's'
      INTO listed, takes_stored
      FROM pg_publication p LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = relation
     WHERE p.pubname = {{publication}};
    RETURN (SELECT coalesce(jsonb_agg(jsonb_build_array(
                       a.attnum, a.attname, a.atttypid::bigint, format_type(a.atttypid, a.atttypmod), a.atttypmod,
                       {NOT_NULL}, array_position(primary_key, a.attnum), a.attidentity::text, a.attgenerated::text,
                       CASE WHEN cardinality(m.found) = 1 THEN m.found[1] END, coalesce(cardinality(m.found) > 1, false),
                       is_published AND CASE WHEN a.attgenerated = '' THEN coalesce(a.attnum = ANY(listed), true)
                                             WHEN takes_stored IS NULL THEN false
                                             ELSE coalesce(a.attnum = ANY(listed), takes_stored AND a.attgenerated = 's') END,
                       {COLLATION}
                   ) ORDER BY a.attnum), '[]')
              FROM pg_attribute a
              LEFT JOIN (SELECT l.attname, array_agg(DISTINCT array_to_string(l.attmissingval, '')) AS found FROM pg_attribute l
                          WHERE l.attrelid = ANY(relation || below) AND l.atthasmissing AND NOT l.attisdropped
                          GROUP BY l.attname) m ON m.attname = a.attname
             WHERE a.attrelid = relation AND a.attnum > 0 AND NOT a.attisdropped);
END
$pgsluice$
"""

PARTITIONS = """
CREATE OR REPLACE FUNCTION {partitions}(below oid[]) RETURNS jsonb
    LANGUAGE plpgsql AS $pgsluice$
-- To tell a partition's constraint the server locks the partition, which somebody may hold; its bound can be told without.
DECLARE
    constraints text[];
BEGIN
    BEGIN
        constraints := ARRAY(SELECT pg_get_partition_constraintdef(b.oid)
                               FROM unnest(below) WITH ORDINALITY b (oid, n) ORDER BY b.n);
    EXCEPTION WHEN lock_not_available THEN
        constraints := ARRAY[]::text[];
    END;
    RETURN (SELECT coalesce(jsonb_agg(jsonb_build_array(
                       c.oid::bigint, i.inhparent::bigint, n.nspname, c.relname, c.relfilenode::bigint,
                       pg_get_expr(c.relpartbound, 0::oid), constraints[b.n]) ORDER BY b.n), '[]')
              FROM unnest(below) WITH ORDINALITY b (oid, n)
              JOIN pg_class c ON c.oid = b.oid JOIN pg_namespace n ON n.oid = c.relnamespace
              JOIN pg_inherits i ON i.inhrelid = c.oid);
END
$pgsluice$
"""

TYPE = """
CREATE OR REPLACE FUNCTION {type}(changed oid) RETURNS jsonb
    LANGUAGE plpgsql AS $pgsluice$
BEGIN
    RETURN (SELECT jsonb_build_object(
                       'oid', t.oid::bigint, 'schema', n.nspname, 'name', t.typname, 'type_kind', t.typtype::text,
                       'base', CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod) ELSE '' END,
                       'labels', (SELECT coalesce(jsonb_agg(jsonb_build_array(e.oid::bigint, e.enumlabel)
                                                            ORDER BY e.enumsortorder), '[]')
                                    FROM pg_enum e WHERE e.enumtypid = t.oid),
                       'attributes', CASE WHEN t.typtype = 'c' THEN (
                           SELECT coalesce(jsonb_agg(jsonb_build_array(
                                               a.attnum, a.attname, a.atttypid::bigint, format_type(a.atttypid, a.atttypmod)
                                           ) ORDER BY a.attnum), '[]')
                             FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) END,
                       'not_null', t.typnotnull,
                       'constraints', CASE WHEN t.typtype = 'd' THEN (
                           SELECT coalesce(jsonb_agg(jsonb_build_array(k.oid::bigint, k.conname) ORDER BY k.oid), '[]')
                             FROM pg_constraint k WHERE k.contypid = t.oid AND k.contype = 'c') END)
              FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
             WHERE t.oid = changed);
END
$pgsluice$
"""
