-- The function carries out one batch: its arrays have one element for each op. It locks the rows in
-- the order of the array, so the caller sorts the ops by name. Two batches then never wait for each
-- other.
--
-- _kinds      t: try, j: join, k: short-lived join, f: free (release or withdraw), n: renew,
--             b: renew with a new base, d: downgrade, p: peek
-- _modes      x: exclusive, s: shared
-- _ttls       of leases, in µs
-- _floors     new fence bases are larger
-- _place_ttl  of a place in the queue, in µs
-- _waits      whether to wait for locked rows; if not, their status is l
-- _notifies   whether to send hints
--
-- _status     g: granted, q: queued, b: busy, d: done, n: not held, l: the row is locked,
--             u: fence bases are used up, f: too many hosts in the row
-- _contended  whether another host is in the queue
-- _base       the new fence base, 0 without one
-- _left       µs until the present leases end, -1 without one
-- _mode       the mode of the present leases
-- _now        the server's clock, in µs of UTC
CREATE FUNCTION {apply}(_names text[], _kinds text[], _modes text[], _tokens text[], _ttls bigint[],
  _floors bigint[], _place_ttl bigint, _waits boolean, _notifies boolean)
RETURNS TABLE (_status text, _contended boolean, _base bigint, _left bigint, _mode text, _now bigint)
LANGUAGE plpgsql AS $body$
DECLARE
  _row      {locks};
  _e        {entry};
  _held     {entry}[];   -- the row's leases that have not ended
  _queue    {entry}[];   -- and its places
  _kind     text;
  _token    text;
  _instance text;
  _there    boolean;
  _locked   boolean;     -- another transaction has the row, and the batch does not wait
  _at       int;         -- the index of the token in _held, 0 without one
  _place    int;         -- in _queue
  _newer    boolean;     -- a later token of this host is in the row
  _older    boolean;     -- an earlier one is
  _drop     boolean;     -- leave out the earlier ones: the host has given them up
  _free     boolean;     -- the token can get the lock
  _late     boolean;     -- the request has been overtaken and changes nothing
  _changed  boolean;
  _freed    boolean;     -- others may be able to get the lock now
  _ends     bigint;
BEGIN
  IF pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on' THEN
    RAISE read_only_sql_transaction USING MESSAGE = 'the server is read-only now';
  END IF;
  IF current_setting('idle_in_transaction_session_timeout') <> '10s' THEN -- see session.sql
    RAISE object_not_in_prerequisite_state USING MESSAGE = 'the settings of the session are lost: '
      'a pooler must pool sessions (pool_mode=session)';
  END IF;

  FOR _i IN 1 .. cardinality(_names) LOOP
    _kind := _kinds[_i];
    _token := _tokens[_i];
    _instance := left(_token, {instance});
    _status := CASE _kind WHEN 'p' THEN 'd' ELSE 'n' END;
    _contended := false;
    _base := 0;
    _left := -1;
    _mode := 'x';
    _locked := false;

    -- Lock the row. An acquire makes it if it is not there. So does a release: otherwise it would
    -- not wait for an earlier acquire that has made the row and is being committed. Each time, the
    -- row may have been deleted again.
    FOR _turn IN 1 .. 20 LOOP
      IF _kind = 'p' THEN
        SELECT * INTO _row FROM {locks} WHERE name = _names[_i];
      ELSIF _waits THEN
        SELECT * INTO _row FROM {locks} WHERE name = _names[_i] FOR UPDATE;
      ELSE
        SELECT * INTO _row FROM {locks} WHERE name = _names[_i] FOR UPDATE SKIP LOCKED;
      END IF;
      _there := FOUND;
      EXIT WHEN _there OR _kind = 'p';
      _locked := NOT _waits AND EXISTS (SELECT FROM {locks} WHERE name = _names[_i]);
      EXIT WHEN _locked OR _kind NOT IN ('t', 'j', 'k', 'f');
      IF _waits THEN
        INSERT INTO {locks} VALUES (_names[_i], 0, 0, '{}', '{}') ON CONFLICT DO NOTHING
          RETURNING * INTO _row;
        _there := FOUND;
      ELSE
        -- A transaction that has not ended may have made the row. INSERT has no SKIP LOCKED.
        BEGIN
          PERFORM set_config('lock_timeout', '1', true);
          INSERT INTO {locks} VALUES (_names[_i], 0, 0, '{}', '{}') ON CONFLICT DO NOTHING
            RETURNING * INTO _row;
          _there := FOUND;
        EXCEPTION WHEN lock_not_available THEN
          _locked := true;
        END;
      END IF;
      EXIT WHEN _there OR _locked;
      IF _turn = 20 THEN
        RAISE 'the row % is not written: is there a trigger on the table?', _names[_i];
      END IF;
    END LOOP;

    -- The clock is read once the row is locked. So the answer is right however long that took.
    _now := {clock};
    IF NOT _there THEN
      IF _locked THEN
        _status := 'l';
      END IF;
      RETURN NEXT;
      CONTINUE;
    END IF;
    -- A damaged counter must not overflow: that would end the whole batch.
    _row.fence := least(_row.fence, {maxbase});

    -- Leave out what has ended.
    _drop := false;
    LOOP
      _at := 0;
      _place := 0;
      _newer := false;
      _older := false;
      _late := false;
      _contended := false;
      _left := -1;
      _held := '{}';
      _queue := '{}';
      EXIT WHEN _row.ends <= _now;
      FOREACH _e IN ARRAY _row.held LOOP
        CONTINUE WHEN _e.ends <= _now;
        IF left(_e.token, {instance}) = _instance AND _e.token <> _token THEN
          CONTINUE WHEN _drop AND _e.token COLLATE "C" < _token;
          _newer := _newer OR _e.token COLLATE "C" > _token;
          _older := _older OR _e.token COLLATE "C" < _token;
        END IF;
        _held := array_append(_held, _e);
        _mode := _e.mode;
        _left := greatest(_left, _e.ends - _now);
        IF _e.token = _token THEN
          _at := cardinality(_held);
        END IF;
      END LOOP;
      FOREACH _e IN ARRAY _row.queue LOOP
        CONTINUE WHEN _e.ends <= _now;
        IF left(_e.token, {instance}) <> _instance THEN
          _contended := true;
        ELSIF _e.token <> _token THEN
          CONTINUE WHEN _drop AND _e.token COLLATE "C" < _token;
          _newer := _newer OR _e.token COLLATE "C" > _token;
          _older := _older OR _e.token COLLATE "C" < _token;
        END IF;
        _queue := array_append(_queue, _e);
        IF _e.token = _token THEN
          _place := cardinality(_queue);
        END IF;
      END LOOP;
      EXIT WHEN _kind NOT IN ('t', 'j', 'k');
      -- What the token has in the other mode stays, and a later token of its host has overtaken it.
      _late := CASE WHEN _at > 0 THEN _held[_at].mode <> _modes[_i] ELSE _newer END;
      EXIT WHEN _late OR NOT _older;
      _drop := true;
    END LOOP;
    _changed := _drop;
    _freed := _drop;

    CASE _kind
    WHEN 'p' THEN
      IF cardinality(_held) > 0 THEN
        _status := 'b';
      END IF;

    WHEN 'f' THEN
      IF _at > 0 THEN
        _held := _held[:_at - 1] || _held[_at + 1:];
      END IF;
      IF _place > 0 THEN
        _queue := _queue[:_place - 1] || _queue[_place + 1:];
      END IF;
      IF _at > 0 OR _place > 0 THEN
        _status := 'd';
        _changed := true;
        _freed := true;
      END IF;

    WHEN 'n', 'b', 'd' THEN
      IF _at > 0 THEN
        _e := _held[_at];
        _e.ends := greatest(_e.ends, _now + _ttls[_i]);
        _freed := _kind = 'd' AND _e.mode = 'x';
        IF _kind = 'd' THEN
          _e.mode := 's';
        ELSIF _kind = 'b' THEN
          _base := greatest(_row.fence + 1, greatest(_floors[_i] + 1, _now) + _i);
        END IF;
        _held[_at] := _e;
        _status := 'd';
        _changed := true;
      END IF;

    ELSE
      -- A writer needs the lock for itself, and must be the first in the queue. A reader needs that
      -- no writer has the lock or is before it in the queue.
      IF _at > 0 THEN
        _free := true;
      ELSIF _modes[_i] = 'x' THEN
        _free := cardinality(_held) = 0 AND (cardinality(_queue) = 0 OR _place = 1);
      ELSE
        _free := cardinality(_held) = 0 OR _held[1].mode = 's';
        FOREACH _e IN ARRAY _queue LOOP
          EXIT WHEN NOT _free OR _e.token = _token;
          _free := _e.mode = 's';
        END LOOP;
      END IF;

      IF _late THEN
        _status := CASE _kind WHEN 't' THEN 'b' ELSE 'q' END;
      ELSIF _free THEN
        IF _at = 0 THEN
          _at := cardinality(_held) + 1;
          _e := ROW(_token, _modes[_i], 0, _now);
        ELSE
          _e := _held[_at];
        END IF;
        _e.ends := greatest(_e.ends, _now + _ttls[_i]);
        _held[_at] := _e;
        IF _place > 0 THEN
          _queue := _queue[:_place - 1] || _queue[_place + 1:];
        END IF;
        _base := greatest(_row.fence + 1, greatest(_floors[_i] + 1, _now) + _i);
        _status := 'g';
        _changed := true;
      ELSIF _kind = 't' THEN
        _status := 'b';
        IF _place > 0 THEN
          _queue := _queue[:_place - 1] || _queue[_place + 1:];
          _changed := true;
          _freed := true;
        END IF;
      ELSE
        _status := 'q';
        -- A place is written only when a third of its time is over.
        IF _place = 0 OR _queue[_place].ends - _now <= _place_ttl * 2 / 3 THEN
          IF _place = 0 THEN
            _place := cardinality(_queue) + 1;
            _e := ROW(_token, _modes[_i], 0, _now);
          ELSE
            _e := _queue[_place];
          END IF;
          _e.ends := greatest(_e.ends, _now + _place_ttl);
          _queue[_place] := _e;
          _changed := true;
          IF _notifies THEN
            FOREACH _e IN ARRAY _held LOOP
              PERFORM pg_notify('{channel}' || left(_e.token, {instance}),
                CASE _kind WHEN 'k' THEN 't' ELSE 'c' END || _names[_i]);
            END LOOP;
          END IF;
        END IF;
      END IF;
    END CASE;

    IF _base > {maxbase} THEN
      _status := 'u';
      _base := 0;
      _changed := false;
    ELSIF cardinality(_held) > {most} OR cardinality(_queue) > {most} THEN
      _status := 'f';
      _base := 0;
      _changed := false;
    END IF;
    IF _changed THEN
      _ends := 0;
      FOREACH _e IN ARRAY _held || _queue LOOP
        _ends := greatest(_ends, _e.ends);
      END LOOP;
      UPDATE {locks} SET fence = greatest(fence, _base), ends = _ends, held = _held, queue = _queue
        WHERE name = _names[_i];
      IF NOT FOUND THEN
        RAISE 'the row % is not written: is there a trigger on the table?', _names[_i];
      END IF;
      -- Wake the waiters who can get the lock now.
      IF _freed AND _notifies THEN
        FOREACH _e IN ARRAY _queue LOOP
          EXIT WHEN _e.mode = 'x' AND (cardinality(_held) > 0 OR _e.token <> _queue[1].token);
          EXIT WHEN cardinality(_held) > 0 AND _held[1].mode = 'x';
          PERFORM pg_notify('{channel}' || left(_e.token, {instance}), 'a' || _names[_i]);
          EXIT WHEN _e.mode = 'x';
        END LOOP;
      END IF;
    END IF;
    RETURN NEXT;
  END LOOP;
END
$body$;
