// Package h2 is both ends of HTTP/2 (RFC 9113) on a connection that is already
// there: [Dial] is the asking end, [Serve] the answering one. Frames and HPACK
// are golang.org/x/net's; what is here are streams, windows and budgets.
//
// The standard library's ends speak with these, and the tunnel began on them.
// They took most of a call's time: a goroutine for each request at the asking
// end, three that pass each frame on at the other, and a lock for what is
// written besides one for what is read. Here one goroutine reads a connection,
// one writes what the reader has to say, and a call runs on its caller's: what
// it writes goes out from there. The streams that got something are told when
// the reader has taken in all that came, not at each frame.
//
// What a tunnel does not need is not here: no push, no priorities, no HEAD or
// CONNECT, no informational answers, no graceful GOAWAY of our own.
package h2

import (
	"errors"
	"time"
)

const (
	// pingEvery and pingWait bound how long a dead peer goes unseen: a ping
	// after 10 s without a frame, 5 s to answer it.
	pingEvery = 10 * time.Second
	pingWait  = 5 * time.Second
	// WriteWithin is how long a write of up to bulk may take: a peer that is slower
	// is none. One that sends but never reads answers no ping either, and is never
	// asked for one.
	WriteWithin = pingEvery + pingWait
	// lastWrite is how long the bytes that wait at the end may take.
	lastWrite = 250 * time.Millisecond

	// StreamWindow is what one stalled stream may hold in memory, either way.
	StreamWindow = 512 << 10
	// ConnectionWindow is so large that only the windows of streams count.
	ConnectionWindow = 1 << 30
	// maxStreams is how many calls one connection carries at once.
	maxStreams = 1000
	// maxHandlers bounds the handlers of streams that were reset and go on.
	maxHandlers = 2 * maxStreams
	// MaxHead bounds the header of a request or an answer, in bytes.
	MaxHead = 64 << 10
	// maxFrame is the most bytes of a frame, either way: what each end of HTTP/2 takes
	// without being asked. One so small is soon here, on a slow line too.
	maxFrame = 16 << 10

	// streamRefund and connectionRefund are how much of a window is given back at
	// once.
	streamRefund     = StreamWindow / 8
	connectionRefund = ConnectionWindow / 64

	// mostUnsent bounds the bytes that wait to be written; past it whoever writes
	// waits too.
	mostUnsent = 64 << 10
	// bulk is a write that waits until it is sent: the streams take turns by the
	// frame, and what one hands over in advance the others wait for (fault 33).
	bulk = maxFrame
	// mostReplies bounds the unsent bytes of what nobody waits for, such as
	// answers to pings: who makes us write more and reads none is cut off.
	mostReplies = 1 << 20

	// mostDetail bounds the bytes that are kept of a peer's text for its farewell.
	mostDetail = 256

	// mostIdle is how many frames that carry nothing (pings, settings, empty data)
	// or break a stream are taken in ten seconds; each that carries something allows ten more.
	mostIdle = 10_000

	// idleWorkers is how many of a server's goroutines wait for their next call:
	// one that ran has the stack that the next needs.
	idleWorkers = 16

	initialWindow  = 65535 // RFC 9113, 6.5.2
	initialStreams = 100   // until the peer has said
	lastStream     = 1<<31 - 1
)

var (
	// ErrFull is a request that was not sent because the peer grants no further
	// stream.
	ErrFull = errors.New("cannot send the call: the machine grants no further stream on its tunnel")

	errClosed   = errors.New("the peer closed the connection")
	errSilent   = errors.New("the peer stopped answering pings")
	errUsedUp   = errors.New("the numbers of the connection's streams are used up")
	errFlood    = errors.New("the peer sends frames that carry nothing, too many")
	errUnread   = errors.New("the peer reads no answers to its frames")
	errNotBegun = errors.New("the peer does not begin with HTTP/2's preface and settings")
)
