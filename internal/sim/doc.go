// Package sim is the whole network in one synctest bubble: a real hub with its
// registry, SQLite store and NATS, real daemons whose engines are doubles, and
// clients that speak HTTP, all over connections in memory and in false time.
// Its tests are scenarios by name and random histories by seed; a seed that
// fails says how to play it again.
//
// What a bubble cannot give: one order of goroutines. A seed fixes the world and
// what is done to it and when, to the nanosecond of false time; what happens at
// the same instant may still come in another order, so a seed that failed once
// may take a few runs (-count) to fail again.
//
// SQLite reads and writes real files in the bubble: a system call is no wait, so
// false time stands still meanwhile. Its pool and its pauses for a lock use
// channels and timers of the bubble. Embedded NATS runs without a socket. What
// must not happen is a wait for something outside, which is why daemons get
// listeners in memory for their local surface and their socket.
package sim
