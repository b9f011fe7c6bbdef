/* The store, as upstream/redis/lua has it. */

inline setFree() {
	stands = 0;
	owner = 0;
	lasts = 0
}

/* recount numbers the bases anew, in their order, so that there is no end to them. */
inline used(b) {
	if
	:: b == j -> b = n
	:: else
	fi
}

inline recount() {
#if FENCES && !defined(NO_STORE_BASE)
	n = 0;
	for (j : 1 .. bases) {
		found = base[0] == j || base[1] == j || mainBase[0] == j || mainBase[1] == j || renewBase[0] == j || renewBase[1] == j;
#if P == 2
		found = found || lastBase == j;
#elif WRITES
		found = found || seenBase == j || clientBase[0] == j || clientBase[1] == j || clientBase[2] == j || clientBase[3] == j;
#endif
		if
		:: found ->
			n++;
			used(base[0]); used(base[1]); used(mainBase[0]); used(mainBase[1]); used(renewBase[0]); used(renewBase[1]);
#if P == 2
			used(lastBase);
#elif WRITES
			used(seenBase); used(clientBase[0]); used(clientBase[1]); used(clientBase[2]); used(clientBase[3]);
#endif
		:: else
		fi
	}
	bases = n;
#endif
	skip
}

/* newBase is larger than all before. */
inline newBase() {
	recount();
#if FENCES
	bases = bases + 1;
#endif
	skip
}

/* apply carries out one op of h in the store; its answer is in i. */
#define ours(h, t) (stands == t && owner == h)
#ifdef NO_RELEASE_TOKEN
#define frees(h, t) (stands != 0)
#else
#define frees(h, t) ours(h, t)
#endif
#ifdef NO_RENEW_TOKEN
#define renews(h, t) (stands != 0)
#else
#define renews(h, t) ours(h, t)
#endif

#if LIVE
#ifdef NO_QUEUE
#define turn(h) true
#else
#define turn(h) (place[h] == 1 || place[h] == 0 && place[1 - h] == 0)
#endif
#ifdef NO_WANTED
#define tells false
#else
#define tells true
#endif

inline leave(h) {
	place[h] = 0;
	if
	:: place[1 - h] == 2 -> place[1 - h] = 1
	:: else
	fi
}
#else
#define turn(h) true /* whoever comes first: more than any queue allows */
#endif

inline apply(h, op, t) {
	i = 0;
	if
	:: op == JOIN ->
#ifndef NO_NEWER_CHECK
		if
		:: stands > t && owner == h -> seen(10); i = NOTHELD /* we are the late one */
		:: else
		fi;
#endif
		if
		:: i == 0 && stands != 0 && owner == h && stands != t -> setFree(); seen(11) /* a pending release of ours */
		:: else
		fi;
		if
		:: i != 0
		:: i == 0 && (ours(h, t) || stands == 0 && turn(h)) ->
			stands = t;
			owner = h;
			lasts = (lasts > TTL -> lasts : TTL);
			newBase();
			i = GRANTED;
#if LIVE
			leave(h);
#endif
		:: else ->
			i = QUEUED;
#if LIVE
			if
			:: place[h] == 0 -> place[h] = (place[1 - h] != 0 -> 2 : 1)
			:: else
			fi
#endif
		fi
	:: op == RELEASE ->
		i = DONE;
		if
		:: frees(h, t) -> setFree()
		:: else
		fi;
#if LIVE
		leave(h)
#endif
	:: op == RENEW || op == REBASE ->
		if
		:: renews(h, t) ->
			lasts = (lasts > TTL -> lasts : TTL);
			if
			:: op == REBASE -> newBase()
			:: else
			fi;
			i = DONE
		:: else -> i = NOTHELD
		fi
	:: else
	fi
}

inline answerMain(h) {
	apply(h, mainOp[h], token[h]);
	mainAt[h] = BACK;
	mainSays[h] = i;
	if
	:: !LIVE && i != GRANTED -> mainAge[h] = 0
	:: else
	fi;
#if FENCES
	if
#ifdef NO_STORE_BASE
	:: i == GRANTED -> own[h]++; mainBase[h] = own[h]
#else
	:: i == GRANTED -> mainBase[h] = bases
#endif
	:: else
	fi;
#endif
#if LIVE
	mainWanted[h] = tells && place[1 - h] != 0;
#endif
}

inline answerRenew(h) {
	apply(h, renewOp[h], token[h]);
	renewAt[h] = BACK;
	renewSays[h] = i;
	if
	:: !LIVE && i != DONE -> renewAge[h] = 0
	:: else
	fi;
#if FENCES
	if
#ifdef NO_STORE_BASE
	:: i == DONE && renewOp[h] == REBASE -> own[h]++; renewBase[h] = own[h]
#else
	:: i == DONE && renewOp[h] == REBASE -> renewBase[h] = bases
#endif
	:: else
	fi;
#endif
#if LIVE
	renewWanted[h] = tells && place[1 - h] != 0;
#endif
}

