-- All SQL of the store. Names in braces are filled in from the table and from the names in a command.
--
-- `n` has the time, `o` is a row of the table, and `w` is the row that was written. $1 is a time that a test
-- imposes, or NULL. $2 is true in a transaction of several statements: all have its time, and a write that is
-- refused fails, so that the server undoes the others. From $3 on come the key and the values. `_bell` is 1 if
-- a waiter is to be notified of the next write, and 2 if it was notified; `set` includes it.

-- name: now
-- The time, read once in a statement, so that nothing in it is decided by two times.
n AS MATERIALIZED (
    SELECT coalesce($1::float8, extract(epoch FROM
        CASE WHEN $2::bool THEN transaction_timestamp() ELSE clock_timestamp() END)::float8) AS now
)

-- name: time
-- The time.
WITH {now} SELECT n.now FROM n

-- name: get
-- Read an item.
WITH {now} SELECT n.now, {item} FROM n LEFT JOIN {table} o ON {key}

-- name: subscribe
-- Read an item, and ask to be notified of the next write to it.
WITH {now}, w AS (
    UPDATE {table} o SET _bell = 1 WHERE {key} AND o._bell <> 1 RETURNING o.*
)
SELECT n.now, {item} FROM n LEFT JOIN w ON TRUE LEFT JOIN {table} o ON w._bell IS NULL AND {key}

-- name: insert
-- Write an item if there is none. An existing row is not locked, and its writer is not waited for.
WITH {now}, w AS (
    INSERT INTO {table} AS o ({columns})
    SELECT {values}
    FROM n WHERE NOT EXISTS (SELECT FROM {table} o WHERE {key})
    ON CONFLICT DO NOTHING RETURNING o._bell
)
{reply}

-- name: put
-- Write an item if there is none, or one that may be written over. An addition returns what it wrote.
WITH {now}, w AS (
    INSERT INTO {table} AS o ({columns})
    SELECT {values}
    FROM n ON CONFLICT ({key_columns}) DO UPDATE SET {set}
    WHERE {expected} RETURNING {written}
)
{reply}

-- name: update
-- Change an item that is as expected.
WITH {now}, w AS (
    UPDATE {table} o SET {set}
    FROM n WHERE {key} AND {expected} RETURNING {written}
)
{reply}

-- name: delete
-- Remove an item that is as expected.
WITH {now}, w AS (
    DELETE FROM {table} o USING n WHERE {key} AND {expected} RETURNING CASE o._bell WHEN 1 THEN 2 ELSE 0 END AS _bell
)
{reply}

-- name: rung
-- What every change sets: 0 none waits, 1 one waits, 2 this write has notified it.
_bell = CASE o._bell WHEN 1 THEN 2 ELSE 0 END

-- name: reply
-- The time, whether the write was made, the notification, and the item that refused it or was added to.
SELECT n.now,
    (CASE WHEN w._bell IS NOT NULL THEN 'true' WHEN $2 THEN '{refused}' ELSE 'false' END)::bool,
    CASE WHEN w._bell = 2 AND octet_length({note}) <= 7999 THEN pg_notify({channel}, {note}) IS NULL END,
    {found}
FROM n LEFT JOIN w ON TRUE LEFT JOIN {table} o ON w._bell IS NULL AND {key}

-- name: page
-- Read a page of items that have not expired, and one item more.
WITH {now} SELECT n.now, r.* FROM n LEFT JOIN LATERAL (
    SELECT {item} FROM {table} o WHERE {asked} ORDER BY {order} LIMIT {limit}
) r ON TRUE ORDER BY {order_again}

-- name: reap
-- Remove some expired items, and count them. A row that another transaction is writing is left out.
WITH {now}, w AS (
    DELETE FROM {table} o USING n WHERE o.{expires} <= n.now AND ({key_columns}) IN (
        SELECT {key_columns} FROM {table} WHERE {expires} <= (SELECT now FROM n)
        ORDER BY {expires} LIMIT $3::bigint FOR UPDATE SKIP LOCKED
    ) RETURNING 1
)
SELECT count(*) FROM w

-- name: relation
-- How many rows a table has, as ANALYZE last saw it, and how many bytes it takes with its indexes.
SELECT greatest(c.reltuples, 0)::float8, pg_total_relation_size(c.oid)::float8
FROM pg_class c WHERE c.oid = to_regclass($1::text)

-- name: session
-- The number of the session, which a pooler makes up, and whether the server is a standby.
SELECT pg_backend_pid(), pg_is_in_recovery()

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
-- The encoding of the database. Keys are compared by their bytes, which must be those of UTF-8.
SELECT current_setting('server_encoding')

-- name: meta
-- What the schema says of itself.
SELECT name, value FROM {meta}

-- name: namespace
-- Whether there is such a schema.
SELECT 1 WHERE to_regnamespace($1::text) IS NOT NULL

-- name: alone
-- Wait until no other session changes the schema. Until the end of the transaction, none can.
SELECT pg_advisory_xact_lock(495622907244)

-- name: valid
-- Whether an index can be used; no row if there is none.
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
-- Store the version of the schema and its environment. The first environment stays.
INSERT INTO semel_meta (name, value) VALUES ('schema', $1::text), ('environment', $2::text)
ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value WHERE semel_meta.name = 'schema'
