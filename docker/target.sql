-- The target's role. The image runs this once with psql, as the superuser, when its data directory is new.
\set password `cat /run/secrets/target-password`

-- As the worker connects: it makes its schema pgsluice, and the tables that are missing.
CREATE ROLE pgsluice LOGIN PASSWORD :'password';
GRANT CREATE ON DATABASE shop TO pgsluice;
GRANT CREATE ON SCHEMA public TO pgsluice;
