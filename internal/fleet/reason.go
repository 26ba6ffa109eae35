package fleet

// Reason explains a row of spec/routing.md#the-twelve-rows to a caller. It only describes
// what the caller can reach.
type Reason struct {
	// Row is the number of the row. Rows with the same answer have the same Reason,
	// because their numbers would reveal what is out of reach: 1 and 5 and, except for
	// chat, 6 and 7.
	Row  int
	What string // what is wrong
	Fix  string // what would change it
}

// ReasonOf returns the Reason for a row, 1 to 12, for a call of the given family. It
// returns the zero Reason for other numbers.
func ReasonOf(row int, family Family) Reason {
	if row == 5 || family != Chat && (row == 6 || row == 7) {
		row = rowNotFound
	}
	r, known := reasons[row]
	if !known {
		return Reason{}
	}
	if row == rowNotFound && family != Chat {
		r.What = "no machine you can use offers this model for this kind of call"
	}
	r.Row = row
	return r
}

// rowNotFound is the first of the rows with model_not_found. It stands for all of them.
const rowNotFound = 1

const getReach = "ask someone who runs it to share a machine with you (`kith share add`, on their side), join a group of theirs, " +
	"or connect a machine of your own that runs it (`kith login`, `kith serve`)"

// reasons are by row, except for rows that share another row's Reason.
var reasons = map[int]Reason{
	rowNotFound: {
		What: "no machine that is online offers a model of exactly this id",
		Fix:  "send the id byte for byte as `kith models --account` lists it; or " + getReach,
	},
	2: {
		What: "it could not be confirmed just now who shares with you, so nothing was tried",
		Fix:  "nothing of yours: the hub reads its database again within seconds; retry",
	},
	3: {
		What: "a machine you can use is ready",
		Fix:  "nothing has to change",
	},
	4: {
		What: "every machine you can use that could run it is busy, or went away just now and is expected back",
		Fix:  "a slot that comes free, or the machine's return: a call waits for either; more machines or slots (`[share] slots`) make it rarer",
	},
	6: {
		What: "no one shares with you, and none of your own machines offers this model",
		Fix:  getReach + "; repeating the call does not help",
	},
	7: {
		What: "none of your own machines offers this model, and none of those shared with you or in your groups offers it to you",
		Fix:  getReach + "; waiting does not help",
	},
	8: {
		What: "every machine you can use that offers this model is offline; your access is intact",
		Fix:  "one of them coming back: its owner sees with `kith status` there whether its daemon runs and its line is up",
	},
	9: {
		What: "every machine shared with you that offers this model and is online is outside its sharing hours; your access is intact",
		Fix:  "its hours, which its owner sets (`kith hours`, or as a limit of the share or the group); a machine of your own that runs the model is bound by none",
	},
	10: {
		What: "none of the machines you can use that offer this model takes a call now: each is offline, paused, outside its sharing hours, " +
			"or has served all that its owner gives you in a day",
		Fix: "its owner ending the pause (`kith resume`), its hours coming, the day's end (00:00 UTC) or a larger limit of the share or the group, or its return",
	},
	11: {
		What: "the machines that could have run it were busy until the wait was over, or became unavailable before they started",
		Fix:  "a slot that comes free: retry after Retry-After, or wait longer (`Prefer: wait` shortens the wait, stream: true lengthens it)",
	},
	12: {
		What: "the wait was over, and of the machines you can use some were busy and the rest paused, outside their hours, used up for the day or offline",
		Fix:  "a slot that comes free, or an owner who opens one of the others: retry after Retry-After",
	},
}
