-- Rows without leases and places that have ended, and the server's clock. {of} chooses the rows.
SELECT l.name, l.fence, t.now,
  (SELECT json_agg(h) FROM unnest(l.held) h WHERE h.ends > t.now),
  (SELECT count(*) FROM unnest(l.queue) q WHERE q.ends > t.now)
FROM (SELECT {clock} AS now) t, LATERAL (SELECT * FROM {locks} {of}) l
