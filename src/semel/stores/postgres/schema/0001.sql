-- What the schema says of itself: its version, and the environment that it belongs to.
CREATE TABLE IF NOT EXISTS semel_meta (
    name text PRIMARY KEY,
    value text NOT NULL
);
