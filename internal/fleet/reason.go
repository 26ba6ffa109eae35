package fleet

// Reason is what a row of decisions 2 says to a caller: what held, and what
// would change it. It speaks of the caller's own reach and of nothing else.
type Reason struct {
	// Row is the row's number. Rows that give callers one and the same answer
	// have one Reason, of the row that says least, since their numbers would tell
	// what is out of reach: 1 and 5 and, but for chat, 6 and 7.
	Row  int
	What string
	Mend string
}

// Reason is the decision's, for a call of that family.
func (d Decision) Reason(family Family) Reason { return ReasonOf(d.Row, family) }

// ReasonOf is the Reason of a row, 1 to 12, for a call of that family. A row
// that is none has the zero Reason.
func ReasonOf(row int, family Family) Reason {
	if row == 1 || family != Chat && (row == 6 || row == 7) {
		row = leastTold
	}
	r, known := reasons[row]
	if !known {
		return Reason{}
	}
	if row == leastTold && family != Chat {
		r.What = "no machine you can use offers this model for this kind of call"
	}
	r.Row = row
	return r
}

// leastTold is the row of model_not_found that says no more than that.
const leastTold = 5

const getReach = "ask someone who runs it to share a machine with you (`kith share add`, on their side), join a group of theirs, " +
	"or connect a machine of your own that runs it (`kith login`, `kith serve`)"

// reasons stand by number of row, but for those that share another's.
var reasons = map[int]Reason{
	2: {
		What: "it could not be confirmed just now who shares with you, so nothing was tried",
		Mend: "nothing of yours: the hub reads its database again within seconds; retry",
	},
	3: {
		What: "a machine you can use is ready",
		Mend: "nothing has to change",
	},
	4: {
		What: "every machine you can use that could run it is busy, or went away just now and is expected back",
		Mend: "a slot that comes free, or the machine's return: a call waits for either; more machines or slots (`[share] slots`) make it rarer",
	},
	leastTold: {
		What: "no machine that is online offers a model of exactly this id",
		Mend: "send the id byte for byte as `kith models --account` lists it; or " + getReach,
	},
	6: {
		What: "nobody shares with you, and none of your own machines offers this model",
		Mend: getReach + "; repeating the call does not help",
	},
	7: {
		What: "none of your own machines offers this model, and none of those shared with you or in your groups offers it to you",
		Mend: getReach + "; waiting does not help",
	},
	8: {
		What: "every machine you can use that offers this model is offline; your access is intact",
		Mend: "one of them coming back: its owner sees with `kith status` there whether its daemon runs and its line is up",
	},
	9: {
		What: "every machine shared with you that offers this model and is online is outside its sharing hours; your access is intact",
		Mend: "its hours, which its owner sets (`kith hours`, or as a limit of the share or the group); a machine of your own that runs the model is bound by none",
	},
	10: {
		What: "none of the machines you can use that offer this model takes a call now: each is offline, paused, outside its sharing hours, " +
			"or has served all that its owner gives you in a day",
		Mend: "its owner ending the pause (`kith resume`), its hours coming, the day's end (00:00 UTC) or a larger limit of the share or the group, or its return",
	},
	11: {
		What: "the machines that could have run it were busy until the wait was over, or became unavailable before they started",
		Mend: "a slot that comes free: retry after Retry-After, or wait longer (`Prefer: wait` shortens the wait, stream: true lengthens it)",
	},
	12: {
		What: "the wait was over, and of the machines you can use some were busy and the rest paused, outside their hours, used up for the day or offline",
		Mend: "a slot that comes free, or an owner who opens one of the others: retry after Retry-After",
	},
}
