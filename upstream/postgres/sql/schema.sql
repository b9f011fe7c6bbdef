CREATE TYPE {entry} AS (
  token text,    -- instance.number of the daemon that has the entry
  mode  text,    -- x: exclusive, s: shared
  ends  bigint,  -- µs of UTC
  since bigint   -- µs of UTC, when the entry was made
);

CREATE TABLE IF NOT EXISTS {locks} (
  name  text COLLATE "C" PRIMARY KEY, -- the prefix and the key
  fence bigint NOT NULL,              -- the last fence base given out
  ends  bigint NOT NULL,              -- µs of UTC, when the last entry of held and queue ends
  held  {entry}[] NOT NULL,           -- the leases
  queue {entry}[] NOT NULL            -- the waiting hosts, first come, first served
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

CREATE TABLE IF NOT EXISTS {daemons} (
  id    text COLLATE "C" PRIMARY KEY, -- the instance
  entry text NOT NULL,                -- host, version and process, as JSON
  ends  bigint NOT NULL               -- µs of UTC
);
