// Package sim is the whole network in one synctest bubble: a real hub with its
// registry, SQLite store and NATS, real daemons whose engines are doubles, and
// clients that speak HTTP, all over connections in memory and in false time.
// Its tests are scenarios by name and random histories by seed; a seed that
// fails says how to play it again.
//
// A seed fixes the world, and what is done to it and when, to the nanosecond of
// false time, and it is played again with the same result (TestSeedsReplay). What
// differed from run to run was: ids and jitter, which were random and now depend
// on the seed and the time; the order in which a line ended and its machine was
// known to be gone, which the registry now decides; and two timers of one instant,
// which a history avoids. What remains to Go is the order of goroutines that run
// at one instant, which nothing here may depend on.
//
// SQLite reads and writes real files in the bubble: a system call is no wait, so
// false time stands still meanwhile. Its pool and its pauses for a lock use
// channels and timers of the bubble. Embedded NATS runs without a socket. What
// must not happen is a wait for something outside, which is why daemons get
// listeners in memory for their local surface and their socket.
package sim
