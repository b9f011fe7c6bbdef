/* The guarded resource, and what clients write to it. */

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
