-- Every statement of this store. Names in braces are filled in once for each table, or for each form of a
-- write; values are always parameters.

-- name: select
-- One item by its key; also what a refused write found.
SELECT {all} FROM {table} WHERE {key_is}

-- name: glance
-- Some attributes of an item that has not expired, as every replay reads them.
SELECT {columns} FROM {table} WHERE {key_is} AND {expires} > ?{equal}

-- name: insert
-- Put an item that must be absent, such as a claim.
INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT ({key}) DO NOTHING

-- name: replace
-- Put an item, whatever is there.
REPLACE INTO {table} ({columns}) VALUES ({values})

-- name: update
-- Change an item that is still as it was read, such as a completion; or replace all of it.
UPDATE {table} SET {set} WHERE {key_is}{where}

-- name: delete
-- Remove an item that is still as it was read.
DELETE FROM {table} WHERE {key_is}{where}

-- name: add
-- Add to a number up to a cap, or make the item.
INSERT INTO {table} ({columns}) VALUES ({values})
ON CONFLICT ({key}) DO UPDATE SET {set} {where} RETURNING {all}

-- name: add_to_existing
-- Add to a number of an item that has to be there.
UPDATE {table} SET {set} WHERE {key_is} {where} RETURNING {all}

-- name: page
-- A page of items, and one more if another page follows.
-- The + keeps SQLite from the index on expiry, which would find nearly every row.
SELECT {all} FROM {table} WHERE +{expires} > ?{range} ORDER BY {order} LIMIT {limit}

-- name: reap
-- Remove up to a number of expired items.
DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE {expires} <= ? ORDER BY {expires} LIMIT ?)

-- name: note_time
-- Note the end of the second in which the file was last written: it never starts below that.
INSERT INTO semel_meta VALUES ('written until', ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE value < excluded.value

-- name: lock
-- Changes nothing, and makes a transaction that has only read so far the one that writes.
DELETE FROM semel_meta WHERE 0

-- name: create_meta
-- What the file says of itself: its schema, its environment, and its time.
CREATE TABLE IF NOT EXISTS semel_meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID

-- name: create_table
CREATE TABLE IF NOT EXISTS {table} ({definitions}, PRIMARY KEY ({key})) WITHOUT ROWID

-- name: create_index
CREATE INDEX IF NOT EXISTS {name} ON {table} ({columns}){where}
