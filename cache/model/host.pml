/* The table of a host: cache/*.go. h is the host, c a client. Every event ends in advance. */

inline onlyOne(c) {
#if P == 1
	for (k : 0 .. 3) {
		assert(k == c || client[k] != INSIDE || valid[k] == 0)
	}
#else
	skip
#endif
}

/* clearGrip: an answer to a renewal under way is not waited for any more. */
inline clearGrip(h) {
	if
	:: renewAt[h] == SENT -> giveUp(h, renewOp[h])
	:: else
	fi;
	renewIdle(h);
	left[h] = 0;
	starved[h] = false;
#if FENCES
	base[h] = 0;
	hand[h] = 0;
	rebase[h] = false;
#endif
#if LIVE
	wanted[h] = false;
	hands[h] = 0;
#endif
}

inline drop(h) {
	holder[h] = 0;
	forced[h] = false
}

inline owe(h) {
	clearGrip(h);
	state[h] = OWED
}

inline forget(h) {
	clearGrip(h);
	state[h] = NONE;
	token[h] = 0
}

inline expire(h) {
#ifdef NO_EXPIRY_CHECK
	if
	:: state[h] == HELD && left[h] == 0 && first[h] == 0 ->
#else
	if
	:: state[h] == HELD && left[h] == 0 ->
#endif
		if
		:: holder[h] != 0 -> seen(1) /* a holder's deadline passes */
		:: else
		fi;
		drop(h);
		owe(h)
	:: else
	fi;
	if
	:: forced[h] && valid[holder[h] - 1] == 0 -> drop(h); seen(2) /* what was closed by force opens */
	:: else
	fi
}

/* nextFence begins a hold's; the order of the calls is that in which holders begin. */
inline nextFence(h, c) {
#if FENCES
#ifdef NO_FENCE_BUMP
	if
	:: hand[h] == 0 -> hand[h] = 1
	:: else
	fi;
#else
	hand[h] = hand[h] + 1;
#endif
#ifndef NO_REBASE
	if
	:: hand[h] >= HANDS -> rebase[h] = true
	:: else
	fi;
#endif
#if P == 2
	assert(newer(base[h], hand[h], lastBase, lastHand));
	lastBase = base[h];
	lastHand = hand[h];
#endif
#endif
#if WRITES
	clientBase[c] = base[h];
	clientHand[c] = hand[h];
	before[c] = 0;
	for (k : 0 .. 3) {
		if
		:: k != c && clientBase[k] != 0 -> before[c] = before[c] | (1 << k)
		:: else
		fi
	}
#endif
	skip
}

inline grant(h) {
	i = first[h] - 1;
	first[h] = second[h];
	second[h] = 0;
	holder[h] = i + 1;
	client[i] = INSIDE;
	valid[i] = left[h];
#if LIVE
	acted[i] = true;
#endif
	nextFence(h, i);
	onlyOne(i)
}

#ifdef NO_EXPIRY_CHECK
#define past(h) (left[h] == 0)
#else
#define past(h) false
#endif
#if LIVE && !defined(NO_BOUND)
#define mayHandoff(h) (!wanted[h] || hands[h] < BOUND)
#elif LIVE
#define mayHandoff(h) true
#else
#define mayHandoff(h) (!shy)
#endif

/* handoff: fresh says that the lease has just come from the store. */
inline handoff(h, fresh) {
	starved[h] = false;
	if
	:: state[h] == HELD && holder[h] == 0 && first[h] != 0 && (fresh || mayHandoff(h)) ->
		if
		:: !fresh && left[h] < THIRD && !past(h) ->
			seen(3); /* too little is left: renewed first */
			starved[h] = true;
			askRenew(h)
#if FENCES && !defined(NO_REBASE)
		:: (fresh || left[h] >= THIRD || past(h)) && hand[h] >= HANDS ->
			rebase[h] = true;
			starved[h] = true;
			askRenew(h)
#endif
		:: else ->
#if LIVE
			if
			:: wanted[h] && !fresh -> hands[h]++; seen(4) /* another host waits, and yet */
			:: else
			fi;
#endif
			if
			:: !fresh -> seen(5) /* handoff */
			:: else
			fi;
			grant(h)
		fi
	:: else
	fi
}

/* next asks the store for the next thing. What has failed is asked again by an event. */
inline next(h) {
	if
	:: state[h] == HELD && holder[h] == 0 && !starved[h] ->
		owe(h);
		askMain(h, RELEASE)
	:: state[h] == ASKED && first[h] == 0 ->
		state[h] = OWED;
		askMain(h, RELEASE)
	:: state[h] == NONE && first[h] != 0 ->
		newToken(h);
		state[h] = ASKED;
		askMain(h, JOIN)
	:: else
	fi
}

inline advance(h) {
	expire(h);
	handoff(h, false);
	if
	:: mainAt[h] == IDLE -> next(h)
	:: else
	fi;
#if FENCES
	if
	:: state[h] == HELD && rebase[h] -> askRenew(h)
	:: else
	fi
#endif
}

/* Store results: cache/store.go and renew.go. */

#ifdef NO_SEND_TIME
#define length(age) LENGTH
#else
#define length(age) (age < LENGTH -> LENGTH - age : 0)
#endif

inline asked(h) {
	if
	:: mainSays[h] == GRANTED ->
		state[h] = HELD;
		left[h] = length(mainAge[h]);
#if FENCES
		base[h] = mainBase[h];
#endif
#if LIVE
		wanted[h] = mainWanted[h];
#endif
		mainIdle(h);
		if
		:: left[h] > 0 -> handoff(h, true)
		:: else -> seen(6) /* a grant that comes too late */
		fi
	:: else ->
		mainIdle(h);
#if LIVE
		polled[h] = true
#endif
	fi
}

inline renewed(h) {
#ifndef NO_LAPSE_CHECK
	expire(h); /* before the deadline is moved: the store may have given it to another host since */
#endif
	if
	:: state[h] != HELD -> skip
	:: state[h] == HELD && renewSays[h] == DONE ->
		if
		:: left[h] < length(renewAge[h]) ->
			left[h] = length(renewAge[h]);
			seen(7) /* a renewal moves the deadline */
		:: else
		fi;
#if FENCES
		if
		:: renewBase[h] > base[h] ->
			base[h] = renewBase[h];
			hand[h] = 0;
			rebase[h] = false;
			seen(8) /* a new base for a lease that is held */
		:: else
		fi;
#endif
#if LIVE
		wanted[h] = wanted[h] || renewWanted[h];
#endif
		renewIdle(h);
		/* a keepalive, at once */
		if
		:: holder[h] != 0 && !forced[h] && valid[holder[h] - 1] < left[h] ->
			valid[holder[h] - 1] = left[h];
			onlyOne(holder[h] - 1)
		:: else
		fi
	:: else -> /* NOTHELD: with a store that keeps what it has, never before the deadline */
		renewIdle(h);
		drop(h);
		forget(h)
	fi
}
