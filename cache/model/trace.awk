# One line a step of a counterexample: who, and what is different after it. For run.sh trace.

function flush(  v, s) {
	if (step && who !~ /init/ && who !~ /served/) {
		s = ""
		for (v in now) if (now[v] != was[v]) s = s " " v "=" now[v]
		if (s != "") printf "%3d %-8s%s\n", ++shown, who, s
	}
	for (v in now) was[v] = now[v]
}

/^ *[0-9]+:\tproc/ {
	n = $1 + 0
	if (n != step) {
		flush()
		step = n
		who = $4
		gsub(/^\(|:1\)$/, "", who)
		if (!($3 in number)) number[$3] = count[who]++
		who = who number[$3]
	}
	next
}
/CYCLE/ { flush(); step = 0; print "    for ever:" }
/^\t\t[a-zA-Z]+(\[[0-9]\])? = / { if ($1 !~ /^(i|j|k|n|found|shy)$/) now[$1] = $3; next }
END { flush() }
