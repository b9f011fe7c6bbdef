/* The clients. */

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
	:: atomic { d_step { clientBase[c] != 0 -> write(c) }; d_step { tidy } }
#endif
	od
}
