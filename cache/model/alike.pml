/* States are made one that do not differ in what can follow. Without -DALIKE they are not, which
   is for counterexamples that are read by people, and to compare. */

/* Of a host's clients it does not matter which is which. */
inline rename(x, h) {
	if
	:: x != 0 -> x = 4 * h + 3 - x
	:: else
	fi
}

inline order(h) {
	if
	:: client[2 * h] < client[2 * h + 1] || client[2 * h] == client[2 * h + 1] &&
		(first[h] == 2 * h + 2 || client[2 * h] == INSIDE && (holder[h] == 2 * h + 2 || holder[h] != 2 * h + 1 && valid[2 * h] < valid[2 * h + 1])) ->
		k = client[2 * h]; client[2 * h] = client[2 * h + 1]; client[2 * h + 1] = k;
		k = valid[2 * h]; valid[2 * h] = valid[2 * h + 1]; valid[2 * h + 1] = k;
		rename(holder[h], h);
		rename(first[h], h);
		rename(second[h], h)
	:: else
	fi
}

/* Who holds nothing and believes nothing can only say a release that is not held. */
inline outside(h, c) {
	if
	:: client[c] == INSIDE && valid[c] == 0 && holder[h] != c + 1 -> client[c] = OUT
	:: else
	fi
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
	recount();
#if !WRITES && !LIVE
#ifndef NO_RELEASE_CHECK
	outside(0, 0); outside(0, 1); outside(1, 2); outside(1, 3);
#endif
	order(0);
	order(1);
#endif
#endif
	skip
}
