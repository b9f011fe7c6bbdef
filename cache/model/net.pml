/* Who takes part: the ways to the store, late requests, hosts, time. */

proctype Store(byte h) {
	do
	:: atomic {
		if
		:: d_step { mainAt[h] == SENT -> answerMain(h) }
		:: d_step { renewAt[h] == SENT -> answerRenew(h) }
#if LIVE
		:: d_step { mainAt[h] == SENT && losses < LOSSES -> losses++; mainAt[h] = LOST }
		:: d_step { mainAt[h] == BACK && losses < LOSSES -> losses++; mainAt[h] = LOST }
		:: d_step { renewAt[h] == SENT && losses < LOSSES -> losses++; renewAt[h] = LOST }
		:: d_step { renewAt[h] == BACK && losses < LOSSES -> losses++; renewAt[h] = LOST }
#endif
		fi;
		d_step { tidy }
	}
	od
}

#if !LIVE
/* What is late arrives, or never does. */
proctype Late(byte l) {
	do
	:: atomic {
		if
		:: d_step { lateOp[l] != 0 ->
			apply(lateHost[l], lateOp[l], lateToken[l]);
			if
			:: lateOp[l] == JOIN -> seen(12)
			:: lateOp[l] == RELEASE -> seen(13)
			:: else -> seen(14)
			fi;
			vanish(l) }
		:: d_step { lateOp[l] != 0 -> vanish(l) }
		fi;
		d_step { tidy }
	}
	od
}
#endif

proctype Host(byte h) {
	do
	:: atomic {
		if
		:: d_step { mainAt[h] == BACK && mainOp[h] == JOIN -> asked(h) }
		:: d_step { mainAt[h] == BACK && mainOp[h] == RELEASE -> mainIdle(h); forget(h) }
		:: d_step { renewAt[h] == BACK -> renewed(h) }
		:: d_step { state[h] == HELD && left[h] == 0 || forced[h] && valid[holder[h] - 1] == 0 -> skip }
		:: d_step { mustRenew(h) && left[h] > 0 -> askRenew(h) }
		/* a queued host asks again; what was not answered is asked again */
		:: d_step { mayAsk(h) && state[h] == ASKED -> askMain(h, JOIN) }
		:: d_step { mayAsk(h) && state[h] == OWED -> askMain(h, RELEASE) }
#if LIVE
		:: d_step { mainAt[h] == LOST && timesOut && mainAge[h] >= 2 * DELAY -> mainIdle(h); polled[h] = true }
		:: d_step { renewAt[h] == LOST && timesOut && renewAge[h] >= 2 * DELAY -> renewIdle(h) }
#else
		/* given up: it has not arrived yet, or its answer is lost */
#ifndef IN_TIME
		:: d_step { mainAt[h] == SENT -> giveUp(h, mainOp[h]); mainIdle(h) }
		:: d_step { mainAt[h] == BACK -> mainIdle(h) }
		:: d_step { renewAt[h] == SENT -> giveUp(h, renewOp[h]); renewIdle(h) }
		:: d_step { renewAt[h] == BACK -> renewIdle(h) }
#endif
		/* the time of the pending release is over */
		:: d_step { state[h] == OWED && mainAt[h] == IDLE -> forget(h) }
		/* another host waits */
		:: d_step { state[h] == HELD && holder[h] == 0 -> shy = true }
		/* the daemon ends the holder's session, or an operator the hold */
#ifndef UNFORCED
		:: d_step { holder[h] != 0 && !forced[h] && left[h] > 0 ->
#ifdef NO_KEEP_CLOSED
			drop(h);
#else
			forced[h] = true;
#endif
		}
#endif
#endif
		fi;
		d_step { advance(h); tidy }
	}
	od
}

inline tickDown(x) {
	if
	:: x > 0 -> x--
	:: else
	fi
}

inline tickUp(at, counts, x) {
	if
	:: at != IDLE && x < LENGTH && (LIVE || counts) -> x++
	:: else
	fi
}

#if LIVE
/* What does not wait: time stands still for it. */
#define overdue(at, age) (at == SENT && age >= DELAY || (at == BACK || at == LOST && timesOut) && age >= 2 * DELAY)
#define due(h) (overdue(mainAt[h], mainAge[h]) || overdue(renewAt[h], renewAge[h]) || mustRenew(h) || \
	mayAsk(h) && (state[h] == ASKED || state[h] == OWED) || state[h] == HELD && left[h] == 0)
#define mayTick (!due(0) && !due(1))
#else
#define mayTick true
#endif

/* The first process goes on as time. */
init {
	atomic {
		run Store(0);
		run Store(1);
#if !LIVE
		run Late(0);
#if LATE == 2
		run Late(1);
#endif
#endif
		run Host(0);
		run Host(1);
		run Client(0, 0);
		run Client(0, 1);
		run Client(1, 2);
		run Client(1, 3)
	};
	do
	:: atomic {
		if
		:: d_step { mayTick ->
			for (k : 0 .. 3) {
				tickDown(valid[k]);
#if LIVE
				acted[k] = false
#endif
			}
			for (k : 0 .. 1) {
				tickDown(left[k]);
				tickUp(mainAt[k], mainOp[k] == JOIN && (mainAt[k] == SENT || mainSays[k] == GRANTED), mainAge[k]);
				tickUp(renewAt[k], renewAt[k] == SENT || renewSays[k] == DONE, renewAge[k]);
#if LIVE
				polled[k] = false
#endif
			}
			if
			:: lasts == 1 -> setFree()
			:: lasts > 1 -> lasts--
			:: else
			fi }
#if !LIVE && !defined(NO_DRIFT)
		:: d_step { lasts == DRIFT -> setFree() } /* the store's clock is fast */
#endif
		fi;
		d_step { tidy }
	}
	od
}
