// A client for locksidecar in one file, for Node.js 18 and later, without dependencies. README.md shows its use.
import { readFileSync } from 'node:fs';
import net from 'node:net';
const CODES = ['ok', 'busy', 'timeout', 'not_held', 'canceled', 'upgrade', 'unavailable', 'unknown', 'limit', 'invalid',
  'unsupported', 'draining', 'denied', 'bad_frame', 'bad_version', 'too_slow', 'overlong'];
const REASONS = ['', 'expired', 'gone', 'fixed_end', 'forced', 'session', 'shutdown', 'too_long', 'silent'];
const [HELLO, ACQUIRE, RELEASE, RENEW, DOWNGRADE, CANCEL, PING, LOST, KEEPALIVE, FATAL] = [1, 2, 3, 4, 5, 6, 10, 64, 65, 67];
/** Every failure: `code` is a name of PROTOCOL.md, section 5, or 'closed' when there is no connection. */
export class LockError extends Error { constructor(code, text) { Object.assign(super(text ? `${code}: ${text}` : code), { code }); } }
// Node has no CLOCK_BOOTTIME, but /proc/uptime shows it in steps of 10 ms: clock() is never late, clock() + TICK never early.
const TICK = 10, clock = () => Math.round(parseFloat(readFileSync('/proc/uptime', 'latin1')) * 1000);

function encode(v) {
  const [n, fix, below, wide, body] = Array.isArray(v) ? [v.length, 0x90, 16, 0xdb, v.map(encode)]
    : typeof v === 'string' ? [Buffer.byteLength(v), 0xa0, 32, 0xd9, [Buffer.from(v)]] : [BigInt(v), 0, 128, 0xcc, []];
  if (n < 0) return Buffer.from('d3' + BigInt.asUintN(64, n).toString(16), 'hex');
  if (n < below) return Buffer.concat([Buffer.from([fix | Number(n)]), ...body]);
  const log = [0, 1, 2, 3].find((i) => BigInt(n) >> BigInt(8 << i) === 0n && (i || wide !== 0xdb)); // arrays have no length of a byte
  return Buffer.concat([Buffer.from([wide + log]), Buffer.from(n.toString(16).padStart(2 << log, '0'), 'hex'), ...body]);
}

const bad = (what) => new LockError('bad_frame', what);
const must = (ok, v) => { if (!ok) throw bad('a field of another type or range'); return v; };
const big = (v) => must(['number', 'bigint'].includes(typeof v) && v >= 0 && v < 2n ** 63n, v) && BigInt(v);
const num = (v) => Number(big(v));
const text = (v) => must(typeof v === 'string', v);
/** Reads a payload. What is neither number, text nor array is passed over and becomes null. */
function decode(b) {
  let at = 0;
  const take = (n) => { if (n > b.length - at) throw bad('cut short'); return b.subarray(at, (at += n)); };
  const uint = (size) => (size === 8 ? take(8).readBigUInt64BE() : take(size).readUIntBE(0, size));
  const int = (size) => (size === 8 ? take(8).readBigInt64BE() : take(size).readIntBE(0, size));
  const entries = (n, level) => (n > b.length - at ? take(n) : Array.from({ length: n }, () => value(level + 1)));
  const value = (level) => {
    const c = uint(1);
    if (level > 8 || c === 0xc1) throw bad('nested too deeply, or not MessagePack');
    if (c < 0x80 || c >= 0xe0) return c < 0x80 ? c : c - 256;
    if (c < 0x90) return entries(2 * (c & 15), level), null;
    if (c < 0xa0) return entries(c & 15, level);
    if (c < 0xc0) return take(c & 31).toString();
    if (c < 0xc4) return null; // nil, false, true
    if (c < 0xca) return take(uint(1 << ((c - 0xc4) % 3)) + (c > 0xc6)), null; // bin, ext
    if (c < 0xcc) return take(4 << (c - 0xca)), null; // floats
    if (c < 0xd4) return c < 0xd0 ? uint(1 << (c - 0xcc)) : int(1 << (c - 0xd0));
    if (c < 0xd9) return take((1 << (c - 0xd4)) + 1), null; // fixext
    if (c < 0xdc) return take(uint(1 << (c - 0xd9))).toString();
    return c < 0xde ? entries(uint(2 << (c - 0xdc)), level) : (entries(2 * uint(2 << (c - 0xde)), level), null);
  };
  const v = value(0);
  return must(at === b.length && Array.isArray(v) && v.length >= 2, v);
}

/** A lock that is held as long as `held` says so. Its `fence` is a decimal string; `lost` resolves with the reason if it is lost. */
export class Hold {
  #conn; #tell; #valid = 0; #end = 0; #count = 0; #over = '';
  constructor(conn, key, owner, ends, fence) { // ends: the reason once its end has passed
    Object.assign(this, { key, owner, ends, fence: String(fence), id: `${owner} ${fence} ${key}`, who: `${owner} ${key}` }).#conn = conn;
    this.lost = new Promise((tell) => (this.#tell = tell));
  }
  /** Whether the lock is certainly held at this moment. Asks nobody. One that has run out is lost from then on. */
  get held() {
    for (const [t, why] of [[this.#end || Infinity, this.ends], [this.#valid, 'silence']]) if (clock() + TICK > t) this.over(why);
    return !this.#over;
  }
  /** Gives up one acquire. Fails with 'not_held' when it was lost, with 'unknown' when the store has not confirmed. */
  async release() {
    const lost = !this.held && this.#over;
    if (--this.#count === 0) this.#conn.lost.delete(this.who);
    if (['forced', 'silence', this.ends].includes(lost)) this.#ask(RELEASE, [], () => {}).catch(() => {}); // which opens the key to others
    if (lost) throw new LockError('not_held', lost);
    if (this.#count === 0) this.over('released', false);
    await this.#ask(RELEASE, [], (m) => { num(m[2]); }).catch((e) => { if (e.code !== 'closed') throw e; }); // that releases, too
  }
  renew(ttl = 0) { return this.#ask(RENEW, [Math.ceil(ttl)], (m) => this.granted(m, 0)); } // ttl ms from now on; only a fixed lock needs it
  downgrade() { return this.#ask(DOWNGRADE, [], (m) => this.granted(m, 0)); } // from exclusive to shared, without a gap
  async #ask(op, more, take) {
    const check = () => { if (op !== RELEASE && !this.held) throw new LockError('not_held', this.#over); };
    const over = (e) => { if (['not_held', 'unknown'].includes(e.code)) this.over('gone'); throw e; };
    await (check() ?? this.#conn.ask(op, [this.key, this.owner, BigInt(this.fence), ...more], { take })).then(check, over);
  }
  granted([, , fence, left, deadline, count, end, flags], more) { // counts here: the grant's count may be older than a release
    [this.#count] = [this.#count + more, ...[fence, left, count, flags].map(num)];
    this.#end = Math.max(this.#end, num(end) && this.#conn.local(num(end))); // replies may come in any order
    this.stated(this.#conn.local(num(deadline)));
  }
  stated(until) { this.#valid = Math.max(this.#valid, until); }
  over(why, tell = true) {
    if (this.#over || !this.#conn.holds.delete(this.id)) return;
    this.#over = why;
    if (tell) this.#conn.lost.set(this.who, why) && this.#tell(why);
  }
}

class Connection { // one session, until it has ended
  holds = new Map(); giving = new Map(); ended = null; #quiet = 0;
  #socket; #waiting = new Map(); #lastID = 0; #limit = 65536; #offset = 0; #unread = Buffer.alloc(0);
  constructor(path, name, lost) {
    const closed = (e) => this.end(new LockError('closed', e?.message ?? 'the daemon has hung up'));
    Object.assign(this, { lost }).#socket = net.connect(path).on('data', (b) => this.#read(b)).on('error', closed).on('end', closed);
    const t0 = clock(), hello = this.ask(HELLO, [1, 1, name, ''], { take: (m) => this.#welcome(t0, m) });
    this.ready = hello.then(() => this, (e) => { this.end(e); throw e; });
    (this.watch = setInterval(() => { // a daemon that hangs keeps the connection open, but does not answer a ping
      this.#quiet = this.#waiting.size && this.#quiet + 1; // seconds with nothing read while an answer is awaited
      if (this.#quiet === 5) this.ask(PING, []).catch(() => {});
      if (this.#quiet === 15) this.end(new LockError('unavailable', 'the daemon does not answer'));
    }, 1000)).unref();
  }
  #welcome(t0, [, , version, session, now, limit, min, usual, max, watch, spaces, daemon]) {
    if (num(version) !== 1) throw new LockError('bad_version', `the daemon chose ${version}`);
    [session, min, usual, max, watch, text(daemon) && 0].forEach(num);
    const t1 = clock() + TICK, d = num(now);
    spaces.forEach((s) => [0, 1, 2].forEach((i) => text(s[i])));
    [this.#offset, this.#limit] = [t0 <= d && d <= t1 && t1 - t0 <= 100 ? 0 : t0 - d - 1, num(limit)];
  }
  local(time) { return time + this.#offset; } // of the daemon's clock, on ours
  /** Sends a request; take sees its success in the order of the stream, and the promise gives what it makes of it. */
  ask(op, fields, { take = () => {}, key, who, signal } = {}) {
    const id = ++this.#lastID, payload = encode([op, id, ...fields]);
    return new Promise((resolve, reject) => {
      if (this.ended || signal?.aborted) throw this.ended ?? new LockError('canceled');
      if (payload.length > this.#limit) throw new LockError('invalid', 'larger than a frame may be');
      const giveUp = () => { // a grant that still comes is released before this owner may ask again
        call.given = true;
        call.done();
        this.giving.set(who, this.ask(CANCEL, [id, key]).catch(() => {}).then(() => this.giving.delete(who)));
        reject(new LockError('canceled', 'given up'));
      };
      const call = { take, resolve, reject, done: () => signal?.removeEventListener('abort', giveUp) };
      this.#waiting.set(id, call);
      signal?.addEventListener('abort', giveUp);
      this.#socket.write(Buffer.concat([Buffer.from(payload.length.toString(16).padStart(8, '0'), 'hex'), payload]));
    });
  }
  #read(chunk) {
    [this.#unread, this.#quiet] = [Buffer.concat([this.#unread, chunk]), 0];
    try {
      for (let n; !this.ended && this.#unread.length >= 4; this.#unread = this.#unread.subarray(4 + n)) {
        n = this.#unread.readUInt32BE();
        if (n === 0 || n > this.#limit) throw bad(`a frame of ${n} bytes`);
        if (this.#unread.length < 4 + n) return;
        this.#message(decode(this.#unread.subarray(4, 4 + n)));
      }
    } catch (e) { this.end(e instanceof LockError ? e : bad(e.message)); }
  }
  #message(m) {
    const code = num(must(m[0] < 256, m[0])), id = num(m[1]), call = this.#waiting.get(id);
    if (!call) return id === 0 && this.#push(code, m);
    const made = code === 0 ? call.take(m) : text(m[2]) && null; // both throw on what is no reply to it
    if (this.#waiting.delete(id)) call.done();
    if (call.given) made?.release().catch(() => {});
    else if (code === 0) call.resolve(made);
    else call.reject(new LockError(CODES[code] ?? `code_${code}`, m[2]));
  }
  #push(event, [, , a, b, c, d]) {
    if (event === LOST) this.holds.get(`${big(b)} ${big(c)} ${text(a)}`)?.over(REASONS[num(d)] ?? `reason_${d}`);
    if (event === FATAL) throw new LockError(CODES[num(a)] ?? `code_${a}`, text(b));
    if (event !== KEEPALIVE) return;
    const [until] = [this.local(num(a)), num(b)];
    this.holds.forEach((h) => h.stated(until));
    this.ask(PING, []).catch(() => {}); // a heartbeat, should a namespace require one
  }
  end(why) { // nothing is held any more, and nobody waits
    if (this.ended) return;
    this.ended = why;
    clearInterval(this.watch);
    this.holds.forEach((h) => h.over('connection'));
    this.#socket.destroy();
    this.#waiting.forEach((call) => { call.done(); call.reject(why); });
  }
}

/** Connects when it is first needed, and anew when the connection has ended: what was held on that is lost. */
export class Client {
  #path; #name; #conn = null; #lastOwner = 2 ** 32; #lost = new Map(); // reasons of losses that are not released
  constructor({ path, name = 'node' } = {}) {
    const usual = `${(process.getuid() && process.env.XDG_RUNTIME_DIR) || '/run'}/locksidecar/locksidecar.sock`;
    [this.#path, this.#name] = [path || process.env.LOCKSIDECAR_SOCKET || usual, name];
  }
  connect() { return (this.#conn && !this.#conn.ended ? this.#conn : (this.#conn = new Connection(this.#path, this.#name, this.#lost))).ready; }
  /** Acquires key, and gives a Hold. Times are in ms; a wait of 0 tries, -1 waits for ever, an abort of signal withdraws it. Each acquire
   *  has an owner of its own, unless one is named: that one may acquire again what it holds. */
  async acquire(key, { wait = -1, ttl = 0, shared = false, fixed = false, owner = ++this.#lastOwner, signal } = {}) {
    if (!/^[^\u0000-\u001f\u007f-\u009f\ud800-\udfff]+$/u.test(key) || Buffer.byteLength(key) > 512) throw new LockError('invalid', 'not a key');
    const conn = await this.connect(), who = `${owner} ${key}`;
    while (conn.giving.has(who)) await conn.giving.get(who);
    const out = () => [...conn.holds.values()].map((h) => h.who === who && h.held) && this.#lost.get(who); // held notices what has run out
    if (out()) throw new LockError('not_held', `lost (${out()}), and not released yet`); // else a critical section would begin inside the lost one
    const take = (m) => {
      const lost = out(), one = new Hold(conn, key, owner, fixed ? 'fixed_end' : 'too_long', big(m[2])), hold = conn.holds.get(one.id) ?? one;
      if (conn.holds.set(hold.id, hold) && lost) Object.assign(hold, { who: '' }).over('silence', false); // lost meanwhile: released again
      return hold.granted(m, 1), hold;
    };
    const hold = await conn.ask(ACQUIRE, [key, owner, +shared, Math.ceil(wait), Math.ceil(ttl), +fixed], { take, key, who, signal });
    if (hold.held) return hold;
    hold.release().catch(() => {});
    throw new LockError('not_held', 'the grant came too late, or inside a hold that was lost');
  }
  close() { this.#conn?.end(new LockError('closed', 'by the client')); } // and the daemon releases everything
}
