-- The source's roles and first tables. The image runs this once with psql, as the superuser, when its data directory is new.
\set password `cat /run/secrets/source-password`

-- Owns the tables, and makes further ones: SET ROLE shop_owner.
CREATE ROLE shop_owner NOLOGIN;
GRANT CREATE ON SCHEMA public TO shop_owner;

-- As the replicator connects. Only a table's owner, or a member of the role that owns it, may publish it.
CREATE ROLE pgsluice LOGIN REPLICATION PASSWORD :'password';
GRANT CREATE ON DATABASE shop TO pgsluice;
GRANT shop_owner TO pgsluice;

SET ROLE shop_owner;

CREATE TABLE customers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    total numeric(12, 2) NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now()
);
