package enginetest

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// FreeAddress returns a loopback address for a process that a test starts: nothing listens
// there, and no outgoing connection is given its port. It does not listen there itself: a
// process that starts at that moment would hold the listener. It panics if it finds none.
func FreeAddress() string {
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return address
		}
		conn.Close()
	}
	panic("enginetest: no port is free")
}
