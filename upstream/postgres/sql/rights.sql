-- Whether the user may do what is needed, and whether it may delete.
SELECT
  has_table_privilege('{locks}', 'SELECT') AND has_table_privilege('{locks}', 'INSERT')
    AND has_table_privilege('{locks}', 'UPDATE') AND has_table_privilege('{daemons}', 'SELECT')
    AND has_table_privilege('{daemons}', 'INSERT') AND has_table_privilege('{daemons}', 'UPDATE')
    AND (SELECT bool_and(has_function_privilege(oid, 'EXECUTE')) FROM pg_proc
      WHERE pronamespace = to_regnamespace('{schema}') AND '"' || proname || '"' = '{function}'),
  has_table_privilege('{locks}', 'DELETE') AND has_table_privilege('{daemons}', 'DELETE')
