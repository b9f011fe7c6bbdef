-- What there is of our tables and the function: the columns of both tables, as name and type, empty
-- without the table; whether there is the function; whether the primary key of the locks' table is
-- the name, so that a lock has one row; and whether it is an ordinary table.
SELECT
  (SELECT coalesce(string_agg(attname || ' ' || CASE WHEN format_type(atttypid, NULL) LIKE '%entry%[]'
    THEN 'entry[]' ELSE format_type(atttypid, NULL) END, ',' ORDER BY attnum), '')
    FROM pg_attribute
    WHERE attrelid = to_regclass('{locks}') AND attnum > 0 AND NOT attisdropped),
  (SELECT coalesce(string_agg(attname || ' ' || format_type(atttypid, NULL), ',' ORDER BY attnum), '')
    FROM pg_attribute
    WHERE attrelid = to_regclass('{daemons}') AND attnum > 0 AND NOT attisdropped),
  (SELECT count(*) FROM pg_proc
    WHERE pronamespace = to_regnamespace('{schema}') AND '"' || proname || '"' = '{function}'),
  (SELECT count(*) FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
    WHERE indrelid = to_regclass('{locks}') AND indisprimary AND indisvalid AND indnkeyatts = 1
      AND attname = 'name'),
  (SELECT relkind = 'r' AND relpersistence = 'p' FROM pg_class WHERE oid = to_regclass('{locks}'))
