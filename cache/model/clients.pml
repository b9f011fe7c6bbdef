/* The clients, and the resource that they write to. */

/* noWrites: nothing that c has written is under way any more. */
inline noWrites(c) {
#if WRITES
	clientBase[c] = 0;
	clientHand[c] = 0;
	before[c] = 0;
	outrun = outrun & (15 - (1 << c));
	for (k : 0 .. 3) {
		before[k] = before[k] & (15 - (1 << c))
	}
#else
	skip
#endif
}

inline enqueue(h, c) {
	if
	:: first[h] == 0 -> first[h] = c + 1
	:: else -> second[h] = c + 1
	fi
}

inline dequeue(h, c) {
	if
	:: first[h] == c + 1 -> first[h] = second[h]
	:: else
	fi;
	second[h] = 0
}

/* end is a release that names its hold; whose has ended before is not held. */
inline end(h, c) {
	expire(h);
	if
	:: holder[h] == c + 1 -> drop(h)
#ifdef NO_RELEASE_CHECK
	:: holder[h] != c + 1 && holder[h] != 0 -> drop(h)
#endif
	:: else
	fi;
	client[c] = OUT;
	valid[c] = 0;
	if
	:: c != 0 -> noWrites(c) /* a late write of one client is enough: which it is does not matter */
	:: else
	fi
}

#if WRITES
/* The resource takes no fence smaller than one that it has taken. */
#ifdef NO_FENCE_CHECK
#define takes(c) true
#else
#define takes(c) (!newer(seenBase, seenHand, clientBase[c], clientHand[c]))
#endif

inline write(c) {
	if
	:: takes(c) ->
		assert(!(outrun & (1 << c))); /* nobody writes over what his successor has written */
		if
		:: valid[c] == 0 -> seen(16) /* a paused writer, or a late write, that does no harm */
		:: else
		fi;
		if
		:: newer(clientBase[c], clientHand[c], seenBase, seenHand) ->
			seenBase = clientBase[c];
			seenHand = clientHand[c]
		:: else
		fi;
		outrun = outrun | before[c]
	:: else ->
		assert(client[c] != INSIDE || valid[c] == 0); /* who holds is never refused */
		seen(17) /* a write is refused */
	fi
}
#endif

#if LIVE
#define free(c) (!acted[c])
#define act(c) acted[c] = true
#else
#define free(c) true
#define act(c) skip
#endif

proctype Client(byte h; byte c) {
	do
	:: atomic {
		if
		:: d_step { client[c] == OUT && free(c) ->
			act(c);
			client[c] = WAITS;
			noWrites(c);
			enqueue(h, c) }
		:: d_step { client[c] == INSIDE && free(c) -> act(c); end(h, c) }
#if !LIVE
		:: d_step { client[c] == INSIDE && holder[h] == c + 1 && first[h] != 0 -> shy = true; end(h, c) }
#endif
		/* disconnect, which for a holder is release */
#if LIVE
		:: d_step { client[c] == WAITS && free(c) && c != 2 -> act(c); client[c] = OUT; dequeue(h, c) }
#else
		:: d_step { client[c] == WAITS -> client[c] = OUT; dequeue(h, c) }
#ifdef DOUBLE_RELEASE
		:: d_step { client[c] == INSIDE -> end(h, c); advance(h); drop(h) }
#endif
#endif
		fi;
		d_step { advance(h); tidy }
	}
#if WRITES
	:: d_step { clientBase[c] != 0 -> write(c) }
#endif
	od
}
