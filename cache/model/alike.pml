/* States are made one that do not differ in what can follow. Without -DALIKE they are not, which
   is for counterexamples that are read by people, and to compare. */

/* Of a host's clients it does not matter which is which; where there are writes, of host 1's, since a
   late write is client 0's alone. */
inline rename(x, h) {
	if
	:: x != 0 -> x = 4 * h + 3 - x
	:: else
	fi
}

inline swap(x, y) {
	k = x;
	x = y;
	y = k
}

/* swapBits: the two of h's clients. */
inline swapBits(x, h) {
	x = (x & ~(3 << 2 * h)) | ((x >> 1) & (1 << 2 * h)) | ((x << 1) & (2 << 2 * h))
}

#if WRITES
#define older(a, b) newer(clientBase[b], clientHand[b], clientBase[a], clientHand[a])
#else
#define older(a, b) false
#endif
#define behind(h, a, b) (client[a] < client[b] || client[a] == client[b] && \
	(first[h] == b + 1 || client[a] == INSIDE && (holder[h] == b + 1 || holder[h] != a + 1 && \
	(valid[a] < valid[b] || valid[a] == valid[b] && older(a, b)))))

inline order(h) {
	if
	:: behind(h, 2 * h, 2 * h + 1) ->
		swap(client[2 * h], client[2 * h + 1]);
		swap(valid[2 * h], valid[2 * h + 1]);
		rename(holder[h], h);
		rename(first[h], h);
		rename(second[h], h);
#if WRITES
		swap(clientBase[2 * h], clientBase[2 * h + 1]);
		swap(clientHand[2 * h], clientHand[2 * h + 1]);
		swap(before[2 * h], before[2 * h + 1]);
		swapBits(before[0], h);
		swapBits(before[1], h);
		swapBits(before[2], h);
		swapBits(before[3], h);
		swapBits(outrun, h)
#endif
	:: else
	fi
}

/* Who holds nothing and believes nothing can only say a release that is not held; where there are writes, client 0's. */
inline outside(h, c) {
	if
	:: client[c] == INSIDE && valid[c] == 0 && holder[h] != c + 1 -> client[c] = OUT
	:: else
	fi
}

/* forgetPast: a fence that is smaller than all there are, and so than all to come, is as good as none. */
inline forgetPast(b, x) {
#if FENCES && !defined(NO_STORE_BASE) && !defined(NO_REBASE)
#define above(y, b) (y == 0 || y > b)
#if WRITES
#define writesAbove(b) (above(clientBase[0], b) && above(clientBase[1], b) && above(clientBase[2], b) && above(clientBase[3], b))
#else
#define writesAbove(b) true
#endif
	if
	:: above(base[0], b) && above(base[1], b) && above(mainBase[0], b) && above(mainBase[1], b) &&
		above(renewBase[0], b) && above(renewBase[1], b) && writesAbove(b) ->
		b = 0;
		x = 0
	:: else
	fi
#else
	skip
#endif
}

/* What is late, and can find nothing of its token any more, does nothing. */
inline vain(l) {
	if
	:: lateOp[l] > JOIN && !(owner == lateHost[l] && stands == lateToken[l]) && token[lateHost[l]] != lateToken[l] -> vanish(l)
	:: else
	fi
}

inline alike() {
#if defined(ALIKE)
#if !LIVE && LATE == 1 && !defined(NO_RELEASE_TOKEN) && !defined(NO_RENEW_TOKEN)
	vain(0);
#endif
	renumber(0);
	renumber(1);
#if P == 2
	forgetPast(lastBase, lastHand);
#elif WRITES
	forgetPast(seenBase, seenHand);
#endif
	recount();
#if !LIVE
#ifndef NO_RELEASE_CHECK
	outside(0, 0);
#if !WRITES
	outside(0, 1); outside(1, 2); outside(1, 3);
#endif
#endif
#if !WRITES
	order(0);
#endif
	order(1);
#endif
#endif
	skip
}
