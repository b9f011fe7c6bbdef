-- What a server is and how it keeps what it has committed.
SELECT version(), current_setting('server_version_num'), pg_is_in_recovery(),
  current_setting('transaction_read_only'), current_setting('server_encoding'),
  current_setting('fsync'), current_setting('full_page_writes'),
  current_setting('synchronous_standby_names'),
  (SELECT count(*) FROM pg_stat_replication WHERE pid NOT IN ( -- without logical replication
    SELECT active_pid FROM pg_replication_slots WHERE slot_type = 'logical' AND active_pid IS NOT NULL)),
  pg_backend_pid(), {clock}
