"""The source's functions that run with a command: ``ddl`` for event triggers, ``note`` for migrations, and what both call.

``ddl`` runs within every statement that alters something, whoever runs it, with the rights of the role that installed
it. So it resolves names in pg_catalog alone (pg_temp would come first if it were not named), pins settings that shape
text, and never waits. Its failure is no failure of the statement: it warns, and sends the reader a message of kind
unknown.
"""

from __future__ import annotations

from pgsluice.replicator.definitions.selection_sql import used_types

EMIT = """
CREATE OR REPLACE FUNCTION {emit}(kind text, tag text, facts jsonb) RETURNS void
    LANGUAGE plpgsql AS $pgsluice$
-- The second message keeps the first in its place: a server queues a message by the end of its record, a row by the start.
DECLARE
    secret text;
BEGIN
    SELECT t.token INTO STRICT secret FROM {token} t;
    PERFORM pg_logical_emit_message(true, '{prefix}', convert_to(
        (facts || jsonb_build_object('v', {version}, 'token', secret, 'kind', kind, 'tag', tag))::text, 'UTF8'));
    PERFORM pg_logical_emit_message(true, '{pad}', ''::bytea);
END
$pgsluice$
"""

TELL = """
CREATE OR REPLACE FUNCTION {tell}(tag text, tables oid[], types oid[]) RETURNS boolean
    LANGUAGE plpgsql AS $pgsluice$
-- Describes those of the types that published tables use, and of the tables, with those that use the types, those that the group
-- has or may want. Whether there was such a table.
DECLARE
    using_it oid[];
    changed oid;
    made oid[] := CASE WHEN tag = 'CREATE TABLE' THEN tables END;
BEGIN
    FOREACH changed IN ARRAY types LOOP
        using_it := {users}(changed);
        IF EXISTS (SELECT FROM {select}(using_it) s WHERE s.is_published) THEN
            PERFORM {emit}('type', tag, {type}(changed));
            tables := tables || using_it;
        END IF;
    END LOOP;
    PERFORM {emit}('table', tag, {describe}(s.relation, s.is_published, CASE WHEN NOT s.is_asked THEN made END))
       FROM {select}(tables) s WHERE s.is_published OR s.is_wanted;
    RETURN FOUND;
END
$pgsluice$
"""

COMMANDS = """
CREATE OR REPLACE FUNCTION {commands}(tag text) RETURNS void
    LANGUAGE plpgsql AS $pgsluice$
-- At the end of a command that may have altered tables, or types that tables use.
DECLARE
    relations oid[];
    types oid[];
    schemas oid[];
BEGIN
    SELECT array_agg(DISTINCT c.objid) FILTER (WHERE c.classid = 'pg_class'::regclass),
           array_agg(DISTINCT c.objid) FILTER (WHERE c.classid = 'pg_type'::regclass),
           array_agg(DISTINCT c.objid) FILTER (WHERE c.classid = 'pg_namespace'::regclass)
      INTO relations, types, schemas
      FROM pg_event_trigger_ddl_commands() c;
    IF schemas IS NOT NULL THEN
        relations := relations || ARRAY(SELECT c.oid FROM pg_class c
                                         WHERE c.relnamespace = ANY(schemas) AND c.relkind IN ('r', 'p', 'c'));
        types := types || ARRAY(SELECT t.oid FROM pg_type t WHERE t.typnamespace = ANY(schemas) AND t.typtype IN ('d', 'e', 'r'));
    END IF;
    types := types || ARRAY(SELECT c.reltype FROM pg_class c WHERE c.oid = ANY(relations) AND c.relkind = 'c');
    IF tag = 'ALTER DOMAIN' THEN
        -- To rename a constraint is a command about the constraint.
        types := types || ARRAY(SELECT k.contypid FROM pg_constraint k JOIN pg_event_trigger_ddl_commands() c ON k.oid = c.objid
                                 WHERE c.classid = 'pg_constraint'::regclass AND k.contypid <> 0);
    END IF;
    PERFORM {tell}(tag, relations, types);
END
$pgsluice$
"""

PUBLISH = """
CREATE OR REPLACE FUNCTION {publish}(tag text) RETURNS void
    LANGUAGE plpgsql AS $pgsluice$
-- At the end of a command that may have altered the group's publication: of the tables that it names now, those that are
-- published under their own name, and those that are not. When its options were altered, of all that it names.
DECLARE
    publication record;
    is_altered boolean;
    tables oid[];
BEGIN
    SELECT p.oid, p.puballtables INTO publication FROM pg_publication p WHERE p.pubname = {publication};
    is_altered := EXISTS (SELECT FROM pg_event_trigger_ddl_commands() c
                           WHERE c.classid = 'pg_publication'::regclass AND c.objid = publication.oid);
    tables := ARRAY(SELECT r.prrelid FROM pg_publication_rel r
                     WHERE r.prpubid = publication.oid
                       AND (is_altered OR r.oid IN (SELECT c.objid FROM pg_event_trigger_ddl_commands() c
                                                     WHERE c.classid = 'pg_publication_rel'::regclass)));
    IF current_setting('server_version_num')::int >= 150000 THEN
        tables := tables || ARRAY(SELECT t.oid FROM pg_publication_namespace n JOIN pg_class t ON t.relnamespace = n.pnnspid
                                   WHERE n.pnpubid = publication.oid
                                     AND (is_altered OR n.oid IN (SELECT c.objid FROM pg_event_trigger_ddl_commands() c
                                                                   WHERE c.classid = 'pg_publication_namespace'::regclass)));
    END IF;
    IF is_altered AND publication.puballtables THEN
        tables := ARRAY(SELECT t.oid FROM pg_class t WHERE t.relkind IN ('r', 'p'));
    END IF;
    PERFORM {emit}('published', tag, {describe}(s.relation, true, NULL)) FROM {select}(tables) s WHERE s.is_published;
    PERFORM {emit}('unpublished', tag, {name}(s.relation)) FROM {select}(tables) s
      WHERE s.is_named AND NOT s.is_published AND pg_relation_is_publishable(s.relation);
END
$pgsluice$
"""

UNPUBLISH = """
CREATE OR REPLACE FUNCTION {unpublish}(tag text) RETURNS void
    LANGUAGE plpgsql AS $pgsluice$
-- When something was dropped: tables that were taken out of the group's publication, by name or with their schema. Partitions of
-- theirs that it names are published under their own names now.
DECLARE
    tables oid[];
BEGIN
    tables := ARRAY(SELECT t.oid
                      FROM pg_event_trigger_dropped_objects() d
                      JOIN pg_namespace n ON n.nspname = d.address_names[1]
                      JOIN pg_class t ON t.relnamespace = n.oid
                     WHERE d.address_args = ARRAY[{publication}]
                       AND (d.object_type = 'publication relation' AND t.relname = d.address_names[2]
                            OR d.object_type = 'publication namespace' AND pg_relation_is_publishable(t.oid)));
    PERFORM {emit}('unpublished', tag, {name}(s.relation)) FROM {select}(tables) s WHERE s.is_asked AND NOT s.is_published;
    PERFORM {emit}('published', tag, {describe}(s.relation, true, NULL)) FROM {select}(tables) s
      WHERE s.is_published AND NOT s.is_above;
END
$pgsluice$
"""

DROPS = """
CREATE OR REPLACE FUNCTION {drops}(tag text) RETURNS void
    LANGUAGE plpgsql AS $pgsluice$
-- When something was dropped: tables that were published, and tables and types that lost a part. Those that ALTER TABLE or ALTER
-- TYPE took a part of are told of at the end of the command.
DECLARE
    publishes_all boolean := EXISTS (SELECT FROM pg_publication p WHERE p.pubname = {publication} AND p.puballtables);
    schemas text[];
    changed oid[];
    types oid[];
BEGIN
    schemas := ARRAY(SELECT d.address_names[1] FROM pg_event_trigger_dropped_objects() d
                      WHERE d.object_type = 'publication namespace' AND d.address_args = ARRAY[{publication}]);
    IF current_setting('server_version_num')::int >= 150000 THEN
        schemas := schemas || ARRAY(SELECT s.nspname::text
                                      FROM pg_publication p JOIN pg_publication_namespace n ON n.pnpubid = p.oid
                                      JOIN pg_namespace s ON s.oid = n.pnnspid
                                     WHERE p.pubname = {publication});
    END IF;
    PERFORM {emit}('gone', tag, jsonb_build_object(
                'oid', d.objid::bigint, 'schema', d.address_names[1], 'name', d.address_names[2]))
       FROM pg_event_trigger_dropped_objects() d
      WHERE d.object_type = 'table' AND NOT d.is_temporary AND d.schema_name <> '{schema}'
        AND (publishes_all OR d.schema_name = ANY(schemas) OR EXISTS (
                SELECT FROM pg_event_trigger_dropped_objects() p
                 WHERE p.object_type = 'publication relation' AND p.address_args = ARRAY[{publication}]
                   AND p.address_names = d.address_names));
    IF tag NOT IN ('ALTER TABLE', 'ALTER TYPE') THEN
        changed := ARRAY(SELECT d.objid FROM pg_event_trigger_dropped_objects() d
                          WHERE d.classid = 'pg_class'::regclass AND d.objsubid <> 0
                          UNION
                         SELECT t.oid FROM pg_event_trigger_dropped_objects() d
                           JOIN pg_namespace n ON n.nspname = d.address_names[1]
                           JOIN pg_class t ON t.relnamespace = n.oid AND t.relname = d.address_names[2]
                          WHERE d.object_type = 'table constraint');
    END IF;
    types := ARRAY(SELECT t.reltype FROM pg_class t WHERE t.oid = ANY(changed) AND t.relkind = 'c');
    IF tag <> 'ALTER DOMAIN' THEN
        types := types || ARRAY(SELECT DISTINCT to_regtype(d.address_names[1])::oid FROM pg_event_trigger_dropped_objects() d
                                 WHERE d.object_type = 'domain constraint' AND to_regtype(d.address_names[1]) IS NOT NULL);
    END IF;
    IF EXISTS (SELECT FROM pg_event_trigger_dropped_objects() d WHERE d.object_type = 'index' AND d.original) THEN
        -- It does not say whose it was: the tables whose replica identity is an index that is not there.
        changed := changed || ARRAY(SELECT t.oid FROM pg_class t WHERE t.relreplident = 'i' AND NOT EXISTS (
                                        SELECT FROM pg_index i WHERE i.indrelid = t.oid AND i.indisreplident));
    END IF;
    IF EXISTS (SELECT FROM pg_event_trigger_dropped_objects() d WHERE d.object_type = 'table' AND NOT d.is_temporary) THEN
        -- Nor does a partition; the server locks the table above for the transaction that drops one.
        changed := changed || ARRAY(SELECT t.oid FROM pg_locks l JOIN pg_class t ON t.oid = l.relation AND t.relkind = 'p'
                                     WHERE l.pid = pg_backend_pid() AND l.mode = 'AccessExclusiveLock' AND l.database = (
                                               SELECT b.oid FROM pg_database b WHERE b.datname = current_database()));
    END IF;
    PERFORM {tell}(tag, changed, types);
END
$pgsluice$
"""

REWRITES = """
CREATE OR REPLACE FUNCTION {rewrites}(tag text) RETURNS void
    LANGUAGE plpgsql AS $pgsluice$
-- Before a table's rows are written anew with other values, which no row in the log will tell.
BEGIN
    PERFORM {emit}('rewrite', tag, {name}(s.relation) || jsonb_build_object('reason', pg_event_trigger_table_rewrite_reason()))
       FROM {select}(ARRAY[pg_event_trigger_table_rewrite_oid()]) s WHERE s.is_published AND s.is_above;
END
$pgsluice$
"""

DDL = """
CREATE OR REPLACE FUNCTION {ddl}() RETURNS event_trigger
    LANGUAGE plpgsql SECURITY DEFINER
    {settings} AS $pgsluice$
BEGIN
    CASE tg_event
        WHEN 'table_rewrite' THEN
            PERFORM {rewrites}(tg_tag);
        WHEN 'sql_drop' THEN
            IF EXISTS (SELECT FROM pg_event_trigger_dropped_objects() d
                        WHERE d.object_type LIKE 'publication %' AND d.address_args = ARRAY[{publication}]) THEN
                PERFORM {unpublish}(tg_tag);
            END IF;
            IF EXISTS (SELECT FROM pg_event_trigger_dropped_objects() d
                        WHERE d.classid = 'pg_class'::regclass
                           OR d.object_type IN ('table constraint', 'domain constraint')) THEN
                PERFORM {drops}(tg_tag);
            END IF;
        ELSE
            IF tg_tag LIKE '% PUBLICATION' THEN
                PERFORM {publish}(tg_tag);
            ELSE
                PERFORM {commands}(tg_tag);
            END IF;
    END CASE;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'pgsluice cannot tell what % did (SQLSTATE %)', tg_tag, sqlstate
        USING HINT = 'The statement itself is done; what it altered is not known to the group {group}.';
    BEGIN
        PERFORM {emit}('unknown', tg_tag, jsonb_build_object('sqlstate', sqlstate));
    EXCEPTION WHEN OTHERS THEN
        RAISE WARNING 'pgsluice cannot even tell that (SQLSTATE %)', sqlstate;
    END;
END
$pgsluice$
"""

NOTE = (
    """
CREATE OR REPLACE FUNCTION {note}(relation regclass) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    {settings} AS $pgsluice$
-- For migrations where event triggers cannot be had, and to begin with: the table as it is now, and the types that it uses, but
-- for those that every server has.
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = relation AND c.relkind IN ('r', 'p')) THEN
        RAISE EXCEPTION '% is not a table', relation USING ERRCODE = 'wrong_object_type';
    END IF;
    PERFORM {emit}('type', '{note_tag}', {type}(e.oid))
       FROM ("""
    + used_types("ARRAY[relation::oid]")
    + """) e;
    IF NOT {tell}('{note_tag}', ARRAY[relation::oid], ARRAY[]::oid[]) THEN
        PERFORM {emit}('table', '{note_tag}', {describe}(relation, false, NULL));
    END IF;
END
$pgsluice$
"""
)
