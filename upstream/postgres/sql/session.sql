-- The settings of a connection. Locks need commits that are on the disk; where the server has
-- synchronous standbys, commits wait for them, too. Plans must not depend on statistics of a time
-- when the table was small. A statement that its client has given up must not be carried out much
-- later.
SET default_transaction_isolation = 'read committed';
SET client_encoding = 'UTF8';
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET jit = off;
SET client_min_messages = warning;
SET idle_in_transaction_session_timeout = '10s';
SET lock_timeout = {lock_timeout};
SET statement_timeout = {statement_timeout};
-- A transaction whose last bytes never come keeps its rows locked. No other timeout ends it before
-- version 17: a host that is cut off in the middle of a batch has to be noticed by TCP.
SET tcp_keepalives_idle = 15;
SET tcp_keepalives_interval = 5;
SET tcp_keepalives_count = 3;
SET tcp_user_timeout = '30s';
SELECT set_config('transaction_timeout', '{transaction_timeout}', false)
WHERE current_setting('transaction_timeout', true) IS NOT NULL;
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') NOT IN ('on', 'remote_apply');
