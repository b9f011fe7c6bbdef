// The adapter for `locksidecar conformance`: commands come on standard input, one JSON object a line, and are answered on
// standard output. docs/contribute/client.md has them all.
import readline from 'node:readline';
import { Client } from './locksidecar.mjs';

const client = new Client({ name: 'node-conformance' });
const holds = new Map(); // by owner, fence and key
const aborts = new Map(); // by the command's id
const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const name = (q) => `${q.owner} ${q.fence} ${q.key}`;

const commands = {
  connect: async () => { await client.connect(); },
  close: async () => client.close(),
  async acquire(q) {
    const abort = new AbortController();
    aborts.set(q.id, abort);
    const hold = await client.acquire(q.key, {
      owner: q.owner, shared: q.mode === 'shared', wait: q.wait_ms, ttl: q.ttl_ms, fixed: q.fixed, signal: abort.signal,
    });
    if (!holds.has(hold.id)) {
      hold.lost.then((reason) => say({ event: 'lost', key: hold.key, owner: hold.owner, fence: hold.fence, reason }));
    }
    holds.set(hold.id, hold);
    return { fence: hold.fence };
  },
  held: async (q) => ({ held: holds.get(name(q))?.held ?? false }),
  cancel: async (q) => aborts.get(q.target).abort(),
  release: (q) => hold(q).release(),
  renew: (q) => hold(q).renew(q.ttl_ms),
  downgrade: (q) => hold(q).downgrade(),
};

function hold(q) {
  const h = holds.get(name(q));
  if (!h) throw Object.assign(new Error('never held'), { code: 'not_held' });
  return h;
}

async function answer(q) {
  try {
    say({ id: q.id, ok: true, ...(await commands[q.do](q)) });
  } catch (e) {
    if (!e.code) process.stderr.write(`${e.stack}\n`);
    say({ id: q.id, error: e.code ?? 'bug' });
  }
}

say({
  event: 'ready', client: 'node example',
  can: ['concurrent', 'owners', 'reentrant', 'shared', 'downgrade', 'ttl', 'fixed', 'renew', 'cancel', 'events', 'exec'],
});
readline.createInterface({ input: process.stdin }).on('line', (line) => answer(JSON.parse(line))).on('close', () => process.exit());
