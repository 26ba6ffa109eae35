// Package sim runs a complete network in one synctest bubble: a real hub with its
// registry and SQLite store, real daemons whose engines are doubles, and
// clients that speak HTTP, all over connections in memory and in simulated time.
// Its tests are scenarios by name and random histories by seed; a seed that
// fails prints the command that replays it.
//
// A seed fixes the network, and each event and its time, to the nanosecond, so that a
// replay has the same result (TestSeedsReplay). Ids and jitter depend on the seed and
// the time, and a history has no two timers for the same instant. Only the order of
// goroutines that run at the same instant is left to Go; nothing here may depend on it.
//
// SQLite reads and writes real files in the bubble. Time does not advance during a
// system call; SQLite's pool and its pauses for a lock use channels and timers of the
// bubble. Nothing may wait for something outside the bubble, so daemons get listeners in memory.
package sim
