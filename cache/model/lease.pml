/*
 * The lock of one key: two hosts with two clients each, and a store whose leases have a TTL.
 * README.md says what of cache/ and upstream/redis is here, and what is not. run.sh runs it.
 *
 *   -DP=1 … -DP=4   the property to check, and the parts that it needs
 *   -DNO_…          takes one guard out: there has to be a counterexample then
 *   -DUNFORCED      leaves out holds that are ended by force, -DIN_TIME answers that never come
 *   -DALIKE         makes one of states that do not differ in what can follow
 *   -DWITNESS       prints what has come about at all
 *
 * All times are counted down by tick, so no clock grows and runs are of any length. Each event
 * of the table is one step, as under the mutex of its shard.
 */

#ifndef P
#define P 1
#endif
#define FENCES (P == 2 || P == 3)
#define WRITES (P == 3)
#define LIVE   (P == 4)

#ifndef TTL
#define TTL 4
#endif
#define DRIFT 1            /* what a deadline is less than the TTL, and a store's clock may be fast */
#ifdef NO_MARGIN
#define MARGIN 0
#else
#define MARGIN DRIFT
#endif
#define LENGTH (TTL - MARGIN) /* cache.LeaseDeadline, from the send */
#ifndef THIRD
#define THIRD 2            /* a handoff with less left renews first */
#endif
#ifndef HANDS
#define HANDS 2            /* fences in a base */
#endif
#ifndef BOUND
#define BOUND 1            /* handoffs once another host waits */
#endif
#ifndef LATE
#define LATE 1             /* requests that are given up and may still arrive */
#endif

/* seen says that something has come about that has to: once each, and only in the verifier. */
#ifdef WITNESS
c_decl { static int seenAlready[32]; };
#define seen(x) c_code { if (!seenAlready[x]++) printf("seen %d\n", x); }
#else
#define seen(x) skip
#endif

/* cache/table.go: where a lease stands with the store. */
#define NONE  0
#define ASKED 1
#define HELD  2
#define OWED  3

/* cache/op.go */
#define JOIN    1
#define RELEASE 2          /* OpWithdraw does the same here */
#define RENEW   3
#define REBASE  4          /* OpRenew with Rebase */

#define GRANTED 1
#define QUEUED  2
#define DONE    3
#define NOTHELD 4

/* An op in its lane. */
#define IDLE    0
#define SENT    1          /* on its way to the store */
#define BACK    2          /* its answer is on its way to the host */
#define LOST    3          /* P=4: to be given up */

#define MAXHAND 7
#define newer(b1, h1, b2, h2) ((b1) * HANDS + (h1) > (b2) * HANDS + (h2))

/* The host's table: cache.Lease. */
byte state[2];
byte token[2];             /* 0: none */
byte left[2];              /* HELD: until the deadline */
byte holder[2];            /* a client's number plus 1; 0: nobody holds */
byte first[2];             /* the local queue, the same */
byte second[2];
bool starved[2];
bool forced[2];            /* the hold has been ended by force, and its owner need not know */

/* The lanes: main[h] is the op of the main lane. */
byte mainOp[2];
byte mainAt[2];
byte mainAge[2];           /* since it was sent */
byte mainSays[2];
byte renewOp[2];
byte renewAt[2];
byte renewAge[2];
byte renewSays[2];
/* Requests that were given up: they may arrive, or not. */
byte lateOp[LATE];
byte lateHost[LATE];
byte lateToken[LATE];

/* The store. */
byte owner;                /* a host */
byte stands;               /* its token; 0: the key is free */
byte lasts;                /* until it expires */

/* The clients. */
#define OUT     0
#define WAITS   1
#define INSIDE  2
byte client[4];
byte valid[4];             /* until the deadline that was stated last */

#if FENCES
byte base[2];              /* of the lease */
byte hand[2];              /* of the newest fence in it, plus 1 */
bool rebase[2];
byte mainBase[2];          /* in the answer */
byte renewBase[2];
byte bases;                /* the store's counter */
#if P == 2
byte lastBase;             /* of the newest grant */
byte lastHand;
#endif
#ifdef NO_STORE_BASE
byte own[2];
#endif
#endif

#if WRITES
/* The guarded resource, and what each client's writes carry. A write may be under way, or its
   writer paused, as long as the client has not asked for the lock again. */
byte clientBase[4];
byte clientHand[4];
byte before[4];            /* whose holds came before this client's: a bit each */
byte outrun;               /* those holds whose successor has written */
byte seenBase;
byte seenHand;
#endif

#if LIVE
#define DELAY 1            /* ticks at most each way */
#ifndef LOSSES
#define LOSSES 0           /* messages that get lost */
#endif
bool wanted[2];
byte hands[2];             /* handoffs since the key has been wanted */
bool mainWanted[2];
bool renewWanted[2];
bool polled[2];            /* a moment ago */
bool acted[4];             /* nobody does two things in no time */
byte losses;
/* The store's queue: a host has one place at most, since nothing is late here. */
byte place[2];             /* 0: none, 1: the first, 2 */
byte placeToken[2];
#endif

bool shy;                  /* P != 4: another host waits. Only within one step, as is the scratch below */
byte i, j, k, n;
bool found;
#define tidy alike(); shy = false; i = 0; j = 0; k = 0; n = 0; found = false

#ifdef NO_TIMEOUT
#define timesOut false
#else
#define timesOut true
#endif
#if LIVE
#define RENEWAT 3
#define mustRenew(h) (state[h] == HELD && renewAt[h] == IDLE && (holder[h] != 0 || starved[h]) && left[h] <= RENEWAT)
#define mayAsk(h)    (mainAt[h] == IDLE && !polled[h])
#else
#define mustRenew(h) (state[h] == HELD && renewAt[h] == IDLE && (holder[h] != 0 && !forced[h] || starved[h]) && left[h] < LENGTH)
#define mayAsk(h)    (mainAt[h] == IDLE)
#endif

#include "lanes.pml"
#include "host.pml"
#include "store.pml"
#include "resource.pml"
#include "alike.pml"
#include "clients.pml"
#include "net.pml"

#if LIVE
/* A foreign waiter: client 2 of host 1. */
ltl served { [] (client[2] == WAITS -> <> (client[2] == INSIDE)) }
#endif
