/* The two lanes of a host, what is late, and the tokens that go with requests. */

/* giveUp leaves a request of h to the network. */
inline giveUp(h, op) {
#if !LIVE
	for (k : 0 .. LATE - 1) {
		if
		:: lateOp[k] == 0 ->
			lateOp[k] = op;
			lateHost[k] = h;
			lateToken[k] = token[h];
			break
		:: else
		fi
	}
#else
	skip
#endif
}

inline renewIdle(h) {
	renewAt[h] = IDLE;
	renewOp[h] = 0;
	renewAge[h] = 0;
	renewSays[h] = 0;
#if FENCES
	renewBase[h] = 0;
#endif
#if LIVE
	renewWanted[h] = false;
#endif
}

inline mainIdle(h) {
	mainAt[h] = IDLE;
	mainOp[h] = 0;
	mainAge[h] = 0;
	mainSays[h] = 0;
#if FENCES
	mainBase[h] = 0;
#endif
#if LIVE
	mainWanted[h] = false;
#endif
}

inline askMain(h, op) {
	mainOp[h] = op;
	mainAt[h] = SENT
}

inline askRenew(h) {
	if
	:: state[h] == HELD && renewAt[h] == IDLE ->
		renewAt[h] = SENT;
		renewOp[h] = RENEW;
#if FENCES
		if
		:: rebase[h] -> renewOp[h] = REBASE
		:: else
		fi
#endif
	:: else
	fi
}

/* vanish: what is late does not arrive. */
inline vanish(l) {
	lateOp[l] = 0;
	lateHost[l] = 0;
	lateToken[l] = 0
}

/* renumber counts the tokens of h anew, in their order, so that there is no end to them. */
inline renumber(h) {
	n = 0;
	for (j : 1 .. LATE + 2) {
		found = token[h] == j || owner == h && stands == j;
		for (k : 0 .. LATE - 1) {
			found = found || lateOp[k] != 0 && lateHost[k] == h && lateToken[k] == j
		}
		if
		:: found ->
			n++;
			if
			:: token[h] == j -> token[h] = n
			:: else
			fi;
			if
			:: owner == h && stands == j -> stands = n
			:: else
			fi;
			for (k : 0 .. LATE - 1) {
				if
				:: lateOp[k] != 0 && lateHost[k] == h && lateToken[k] == j -> lateToken[k] = n
				:: else
				fi
			}
		:: else
		fi
	}
}

/* newToken is larger than all of h that are anywhere. */
inline newToken(h) {
	renumber(h);
	token[h] = n + 1
}
