-- name: columns
-- The columns of these tables that are there, and their types. A table that is missing has none.
SELECT t.title, a.attname::text, format_type(a.atttypid, a.atttypmod)
FROM unnest($1::text[], $2::text[]) AS t (title, name)
JOIN pg_attribute a ON a.attrelid = to_regclass(t.name) AND a.attnum > 0 AND NOT a.attisdropped

-- name: indexes
-- The indexes of these tables that can be used.
SELECT c.relname::text
FROM unnest($1::text[]) AS t (name)
JOIN pg_index i ON i.indrelid = to_regclass(t.name) AND i.indisvalid
JOIN pg_class c ON c.oid = i.indexrelid

-- name: privileges
-- What the role may not do with these tables.
SELECT t.title, p.privilege
FROM unnest($1::text[], $2::text[]) AS t (title, name)
CROSS JOIN unnest('{SELECT,INSERT,UPDATE,DELETE}'::text[]) AS p (privilege)
WHERE to_regclass(t.name) IS NOT NULL AND NOT has_table_privilege(to_regclass(t.name), p.privilege)

-- name: encoding
-- The encoding of the database: keys are told apart by their bytes, which have to be those of UTF-8.
SELECT current_setting('server_encoding')

-- name: meta
-- What the schema says of itself.
SELECT name, value FROM {meta}

-- name: namespace
-- Whether there is such a schema.
SELECT 1 WHERE to_regnamespace($1::text) IS NOT NULL

-- name: alone
-- Wait until nobody else is changing the schema; until the end of the transaction nobody will.
SELECT pg_advisory_xact_lock(495622907244)

-- name: valid
-- Whether an index can be used; no row where there is none.
SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass($1::text)

-- name: analyzed
-- Whether ANALYZE has seen rows in a table.
SELECT reltuples > 0 FROM pg_class WHERE oid = to_regclass($1::text)

-- name: create_meta
-- What the schema says of itself: its version, and the environment that it belongs to.
CREATE TABLE IF NOT EXISTS semel_meta (
    name text PRIMARY KEY,
    value text NOT NULL
);

-- name: stamp
-- Say what the schema is, and for which environment; the first one stays.
INSERT INTO semel_meta (name, value) VALUES ('schema', $1::text), ('environment', $2::text)
ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value WHERE semel_meta.name = 'schema'
