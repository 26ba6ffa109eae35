package enginetest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

var chosen sync.Map // the addresses that FreeAddress has tried

// FreeAddress returns a loopback address for a process that a test starts. Nothing
// listens there, outgoing connections do not use its port, and it is returned only once.
// FreeAddress does not listen there itself, because a process started at that moment
// would inherit the listener. It panics if it finds no address.
func FreeAddress() string {
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 13_000+rand.IntN(17_000)) // engines use 11434, 12434 and 30000
		if _, again := chosen.LoadOrStore(address, true); again {
			continue
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return address
		}
		conn.Close()
	}
	panic("enginetest: no port is free")
}
