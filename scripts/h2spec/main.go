// Command h2spec serves HTTP/2 for scripts/h2spec.sh: with net/http alone on the first
// port that it prints, with the machine's end of a tunnel on the second.
package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"

	"github.com/kith/kith/internal/tunnel"
)

func main() {
	for _, serve := range []func(net.Listener){serveAlone, serveTunnel} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			log.Fatal(err)
		}
		go serve(listener)
		fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	}
	select {} // until the script ends it
}

// answer is the handler of both.
func answer(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	io.WriteString(w, strings.Repeat("kith\n", 20))
}

// serveAlone serves with net/http as it is.
func serveAlone(listener net.Listener) {
	plain := new(http.Protocols)
	plain.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: http.HandlerFunc(answer), Protocols: plain, ErrorLog: log.New(io.Discard, "", 0)}
	server.Serve(listener)
}

// serveTunnel serves each connection with the machine's end of a tunnel, whose
// hub h2spec is from the upgrade on.
func serveTunnel(listener net.Listener) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		go serveOne(c)
	}
}

func serveOne(c net.Conn) {
	defer c.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	hub, machine := net.Pipe()
	defer hub.Close()
	dialer := &tunnel.Dialer{
		HubURL:     "http://127.0.0.1",
		Instance:   rand.Text(),
		Credential: func() string { return "none" },
		Handler:    http.HandlerFunc(answer),
		Advertise:  func() (tunnel.Advertisement, <-chan struct{}) { return tunnel.Advertisement{}, nil },
		OnState: func(s tunnel.State) {
			if s.Phase == tunnel.Lost { // one connection, one tunnel
				cancel()
			}
		},
		Dial: func(context.Context, string, string) (net.Conn, error) { return machine, nil },
	}
	go dialer.Run(ctx)
	in := bufio.NewReader(hub)
	if _, err := http.ReadRequest(in); err != nil {
		return
	}
	fmt.Fprintf(hub, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n%s: 1\r\n\r\n", tunnel.Protocol, tunnel.HeaderGeneration)
	go func() {
		io.Copy(hub, c)
		hub.Close()
	}()
	io.Copy(c, in)
}
