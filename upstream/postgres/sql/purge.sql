-- Delete the unused rows of one slice: $1 is the name before it, $2 this host's clock, $3 the age.
-- Rows that are locked are skipped. The answer is the last name, and how many rows were read and
-- deleted.
WITH part AS (SELECT name FROM {locks} WHERE name > $1 ORDER BY name LIMIT {slice}),
old AS (
  SELECT name FROM {locks}
  WHERE name IN (SELECT name FROM part)
    AND fence < least({clock}, $2::bigint) - $3::bigint AND ends <= {clock}
  ORDER BY name FOR UPDATE SKIP LOCKED),
gone AS (DELETE FROM {locks} WHERE name IN (SELECT name FROM old) RETURNING 1)
SELECT coalesce(max(name), ''), count(*), (SELECT count(*) FROM gone) FROM part
