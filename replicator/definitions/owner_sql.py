"""Statements that return the roles that own the capture of a group.

The owner of a schema may replace the objects of any role in it, and a role that may create in it may add a function
next to pgsluice's that PostgreSQL prefers. What event triggers call then runs with the rights of the role that
installed the capture, and what replaces pgsluice's tables runs with the rights of the group's role.

So the schema and the group's objects in it belong to the role that installed them (the owner of the function ``ddl``)
or to superusers, and no other role may create there. The installing role is the group's own, a role that this one is a
member of, a superuser, or the owner of the event triggers, as with administrators of hosted services that offer no
superuser.
"""

from __future__ import annotations

OTHERS = """
WITH me AS (SELECT r.oid, r.rolsuper FROM pg_roles r WHERE r.rolname = current_user),
     home AS (SELECT n.oid, n.nspowner, n.nspacl FROM pg_namespace n WHERE n.nspname = '{schema}'),
     object AS (SELECT 'function' AS kind, p.oid::regprocedure::text AS name, p.proowner AS owner, p.proname FROM pg_proc p
                  JOIN home h ON h.oid = p.pronamespace WHERE p.proname IN ({functions})
                 UNION ALL
                SELECT 'table', c.oid::regclass::text, c.relowner, '' FROM pg_class c
                  JOIN home h ON h.oid = c.relnamespace WHERE c.relname IN ({tables})),
     installer AS ({installer}),
     holder AS (SELECT kind, name, owner FROM object
                 UNION ALL
                SELECT 'schema', '{schema}', h.nspowner FROM home h
                 UNION ALL
                SELECT DISTINCT 'right', '{schema}', a.grantee FROM home h, aclexplode(h.nspacl) a
                 WHERE a.privilege_type = 'CREATE' AND a.grantee <> h.nspowner)
SELECT o.kind, o.name, r.rolname::text AS role
  FROM (SELECT h.kind, h.name, h.owner FROM holder h, installer i WHERE h.owner <> i.oid
         UNION
        SELECT o.kind, o.name, o.owner FROM object o, installer i, me
         WHERE o.owner = i.oid AND i.oid <> me.oid AND (me.rolsuper OR NOT pg_has_role(i.oid, 'MEMBER'))
           AND NOT EXISTS (SELECT FROM pg_event_trigger e WHERE e.evtowner = i.oid AND e.evtname IN ({triggers}))) o
  LEFT JOIN pg_roles r ON r.oid = o.owner
 WHERE r.rolsuper IS NOT TRUE
 ORDER BY o.kind DESC, o.name"""
"""The owners of parts of the capture other than the installer. ``installer`` is INSTALLING or INSTALLED. A superuser is
a member of every role, so membership is no sign of trust."""

INSTALLING = "SELECT oid FROM me"
INSTALLED = "SELECT coalesce((SELECT o.owner FROM object o WHERE o.proname = '{ddl}' LIMIT 1), me.oid) AS oid FROM me"

HOME = """\
DO $pgsluice$
DECLARE
    other regrole;
BEGIN
    IF to_regnamespace('{schema}') IS NULL THEN
        CREATE SCHEMA IF NOT EXISTS {schema};
        -- Default privileges may have let others create in it.
        FOR other IN SELECT DISTINCT a.grantee FROM pg_namespace n, aclexplode(n.nspacl) a
                      WHERE n.nspname = '{schema}' AND a.grantee NOT IN (n.nspowner, 0) LOOP
            EXECUTE format('REVOKE CREATE ON SCHEMA {schema} FROM %s', other);
        END LOOP;
        REVOKE CREATE ON SCHEMA {schema} FROM PUBLIC;
    END IF;
END
$pgsluice$"""

GUARD = """\
DO $pgsluice$
DECLARE
    other record;
BEGIN
    FOR other IN SELECT * FROM ({others}) o LOOP
        IF other.kind = 'right' THEN
            RAISE EXCEPTION '% may create in schema %', coalesce(other.role, 'every role'), other.name
                USING ERRCODE = 'insufficient_privilege',
                HINT = format('REVOKE CREATE ON SCHEMA %I FROM %s CASCADE', other.name,
                              coalesce(quote_ident(other.role), 'PUBLIC'));
        ELSIF other.kind = 'schema' THEN
            RAISE EXCEPTION 'schema % belongs to %', other.name, other.role USING ERRCODE = 'insufficient_privilege',
                HINT = format('ALTER SCHEMA %I OWNER TO CURRENT_USER; GRANT USAGE ON SCHEMA %I TO %I',
                              other.name, other.name, other.role);
        END IF;
        RAISE EXCEPTION '% % belongs to %', other.kind, other.name, other.role USING ERRCODE = 'insufficient_privilege',
            HINT = 'Find out how it came there, remove the capture as an administrator, and install it again.';
    END LOOP;
END
$pgsluice$"""
