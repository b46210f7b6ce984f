"""The source's functions ``select`` and ``users``: the tables that a command concerns, and whether the group has them.

``select`` returns for a few tables what ``pg_get_publication_tables`` returns for all. Neither takes a lock, as
``pg_partition_tree`` would on every partition: no statement waits because of pgsluice.
"""

from __future__ import annotations

from typing import LiteralString


def used_types(tables: LiteralString) -> LiteralString:
    """Returns a query for the types (relation, oid) that columns of ``tables``, an expression, use, also indirectly,
    except built-in types and the row types of tables."""
    return (
        """
             WITH RECURSIVE used (relation, oid) AS (
                 SELECT a.attrelid, a.atttypid FROM pg_attribute a
                  WHERE a.attrelid = ANY("""
        + tables
        + """) AND a.attnum > 0 AND NOT a.attisdropped
                  UNION
                 SELECT u.relation, b.oid
                   FROM used u JOIN pg_type t ON t.oid = u.oid LEFT JOIN pg_range r ON t.oid IN (r.rngtypid, r.rngmultitypid),
                        LATERAL (SELECT unnest(ARRAY[t.typelem, t.typbasetype, r.rngtypid, r.rngsubtype])
                                  UNION ALL
                                 SELECT a.atttypid FROM pg_attribute a
                                  WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) b (oid)
                  WHERE b.oid >= 16384)
             SELECT u.relation, u.oid FROM used u JOIN pg_type t ON t.oid = u.oid LEFT JOIN pg_class c ON c.oid = t.typrelid
              WHERE t.typtype IN ('c', 'd', 'e', 'r') AND t.oid >= 16384 AND coalesce(c.relkind, 'c') = 'c'
              ORDER BY u.oid"""
    )


SELECT = """
CREATE OR REPLACE FUNCTION {select}(asked oid[])
    RETURNS TABLE (relation oid, is_asked boolean, is_above boolean, is_published boolean, is_named boolean, is_wanted boolean)
    LANGUAGE plpgsql AS $pgsluice$
-- The tables, with those above and below them. is_above: it, or a partition of it, is asked for. is_published: rows are sent
-- under its name. is_named: the publication names it, its schema or all tables; a table above it may be published instead.
-- is_wanted: it is not published, but a pattern of the group matches it and no extension owns it; or the publication is of
-- schemas or all tables, and may have had it before.
DECLARE
    publication record;
    covers_more boolean;
    has_parent boolean;
    has_children boolean;
    upward oid[];
    family oid[];
    named oid[];
    published oid[] := ARRAY[]::oid[];
    wanted oid[];
BEGIN
    SELECT array_agg(c.oid), bool_or(c.relispartition), bool_or(c.relhassubclass) INTO asked, has_parent, has_children
      FROM pg_class c
     WHERE c.oid = ANY(asked) AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
       AND c.relnamespace IS DISTINCT FROM to_regnamespace('{schema}');
    IF asked IS NULL THEN
        RETURN;
    END IF;
    upward := asked;
    IF has_parent THEN
        upward := ARRAY(SELECT a.oid FROM unnest(asked) a (oid)
                         UNION SELECT u.relid FROM unnest(asked) a (oid), pg_partition_ancestors(a.oid) u);
    END IF;
    family := upward;
    IF has_children THEN
        family := ARRAY(WITH RECURSIVE below (oid) AS (
                            SELECT a.oid FROM unnest(asked) a (oid)
                             UNION SELECT i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.oid)
                        SELECT b.oid FROM below b UNION SELECT u.oid FROM unnest(upward) u (oid));
    END IF;
    SELECT p.oid, p.puballtables, p.pubviaroot INTO publication FROM pg_publication p WHERE p.pubname = {publication};
    covers_more := coalesce(publication.puballtables, false);
    named := ARRAY(SELECT f.oid FROM unnest(family) f (oid) WHERE covers_more
                       OR EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = publication.oid AND r.prrelid = f.oid));
    IF current_setting('server_version_num')::int >= 150000 THEN
        IF EXISTS (SELECT FROM pg_publication_namespace n WHERE n.pnpubid = publication.oid) THEN
            covers_more := true;
            named := named || ARRAY(SELECT c.oid FROM pg_class c JOIN pg_publication_namespace n ON n.pnnspid = c.relnamespace
                                     WHERE c.oid = ANY(family) AND n.pnpubid = publication.oid);
        END IF;
    END IF;
    IF named <> ARRAY[]::oid[] THEN
        published := ARRAY(SELECT c.oid FROM pg_class c
                            WHERE c.oid = ANY(family) AND pg_relation_is_publishable(c.oid)
                              AND CASE WHEN publication.pubviaroot THEN c.oid = ANY(named)
                                            AND NOT EXISTS (SELECT FROM pg_partition_ancestors(c.oid) a
                                                             WHERE a.relid <> c.oid AND a.relid = ANY(named))
                                       ELSE c.relkind = 'r' AND (c.oid = ANY(named) OR EXISTS (
                                                SELECT FROM pg_partition_ancestors(c.oid) a WHERE a.relid = ANY(named))) END);
    END IF;
    wanted := ARRAY(SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                     WHERE c.oid = ANY(upward) AND c.oid <> ALL(published)
                       AND (covers_more AND c.oid = ANY(asked) OR pg_relation_is_publishable(c.oid) AND EXISTS (
                                SELECT FROM {pattern} p WHERE n.nspname LIKE p.schema_like AND c.relname LIKE p.table_like))
                       AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                                          AND d.deptype = 'e'));
    RETURN QUERY
        SELECT f.oid, f.oid = ANY(asked), f.oid = ANY(upward), f.oid = ANY(published), f.oid = ANY(named),
               f.oid = ANY(wanted) AND NOT EXISTS (SELECT FROM pg_partition_ancestors(f.oid) a WHERE a.relid <> f.oid
                                                      AND (a.relid = ANY(wanted) OR a.relid = ANY(published)))
          FROM unnest(family) f (oid)
         ORDER BY f.oid;
END
$pgsluice$
"""

USERS = """
CREATE OR REPLACE FUNCTION {users}(changed oid) RETURNS oid[]
    LANGUAGE plpgsql AS $pgsluice$
-- The tables that have columns of the type, of arrays, ranges and domains over it, and of composite types that have such columns.
BEGIN
    RETURN ARRAY(
        WITH RECURSIVE used (oid) AS (
            SELECT changed
             UNION
            SELECT CASE WHEN d.classid = 'pg_class'::regclass THEN c.reltype ELSE d.objid END
              FROM used u
              JOIN pg_depend d ON d.refclassid = 'pg_type'::regclass AND d.refobjid = u.oid
                              AND d.classid IN ('pg_class'::regclass, 'pg_type'::regclass)
              LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
             WHERE d.classid = 'pg_type'::regclass OR c.reltype <> 0)
        SELECT c.oid FROM used u JOIN pg_type t ON t.oid = u.oid JOIN pg_class c ON c.oid = t.typrelid
         WHERE c.relkind IN ('r', 'p')
         ORDER BY c.oid);
END
$pgsluice$
"""
