package api

import "github.com/kith/kith/internal/fleet"

// reason explains a row of spec/routing.md#the-twelve-rows to a caller. It only describes
// what the caller can reach.
type reason struct {
	row  int    // as fleet.ShownRow returns it
	what string // what is wrong
	fix  string // what would change it
}

// reasonOf returns the reason for a row, 1 to 12, for a call of the given family. It
// returns the zero reason for other numbers.
func reasonOf(row int, family fleet.Family) reason {
	row = fleet.ShownRow(row, family)
	r, known := reasons[row]
	if !known {
		return reason{}
	}
	if row == 1 && family != fleet.Chat {
		r.what = "no machine you can use offers this model for this kind of call"
	}
	r.row = row
	return r
}

const getReach = "ask someone who runs it to share a machine with you (`kith share add`, on their side), join a group of theirs, " +
	"or connect a machine of your own that runs it (`kith login`, `kith serve`)"

// reasons are the reasons by the row that fleet.ShownRow returns.
var reasons = map[int]reason{
	1: {
		what: "no machine that is online offers a model of exactly this id",
		fix:  "send the id of a model for such calls, byte for byte as `kith models --account` lists it; or " + getReach,
	},
	2: {
		what: "it could not be confirmed just now who shares with you, so nothing was tried",
		fix:  "nothing of yours: the hub reads its database again within seconds; retry",
	},
	3: {
		what: "a machine you can use is ready",
		fix:  "nothing has to change",
	},
	4: {
		what: "every machine you can use that could run it is busy, or went away just now and is expected back",
		fix:  "a slot that comes free, or the machine's return: a call waits for either; more machines or slots (`[share] slots`) make it rarer",
	},
	6: {
		what: "no one shares with you, and none of your own machines offers this model",
		fix:  getReach + "; repeating the call does not help",
	},
	7: {
		what: "none of your own machines offers this model, and none of those shared with you or in your groups offers it to you",
		fix:  getReach + "; waiting does not help",
	},
	8: {
		what: "every machine you can use that offers this model is offline; your access is intact",
		fix:  "one of them coming back: its owner sees with `kith status` there whether its daemon runs and its line is up",
	},
	9: {
		what: "every machine shared with you that offers this model and is online is outside its sharing hours; your access is intact",
		fix:  "its hours, which its owner sets (`kith hours`, or as a limit of the share or the group); a machine of your own that runs the model is bound by none",
	},
	10: {
		what: "none of the machines you can use that offer this model takes a call now: each is offline, paused, outside its sharing hours, " +
			"or has served all that its owner gives you in a day",
		fix: "its owner ending the pause (`kith resume`), its hours coming, the day's end (00:00 UTC) or a larger limit of the share or the group, or its return",
	},
	11: {
		what: "the machines that could have run it were busy until the wait was over, or became unavailable before they started",
		fix:  "a slot that comes free: retry after Retry-After, or wait longer (`Prefer: wait` shortens the wait, stream: true lengthens it)",
	},
	12: {
		what: "the wait was over, and of the machines you can use some were busy and the rest paused, outside their hours, used up for the day or offline",
		fix:  "a slot that comes free, or an owner who opens one of the others: retry after Retry-After",
	},
}
