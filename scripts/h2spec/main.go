// Command h2spec runs h2spec (github.com/summerwind/h2spec) against the tunnel's
// server end and against net/http alone, in one run, and compares what fails. It
// exits with 1 if a case fails at the tunnel that does not fail at net/http.
package main

import (
	"bufio"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/tunnel"
)

const tool = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "h2spec:", err)
		os.Exit(1)
	}
}

func run() error {
	dir, err := os.MkdirTemp("", "h2spec")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	failed := make(map[string]map[string]bool) // by server
	for name, serve := range map[string]func(net.Listener){"net/http": serveAlone, "tunnel": serveTunnel} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer listener.Close()
		go serve(listener)
		report := filepath.Join(dir, "report.xml")
		cases, failures, err := test(listener.Addr().(*net.TCPAddr).Port, report)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %d of %d cases fail\n", name, len(failures), cases)
		failed[name] = failures
	}
	worse := 0
	for _, pair := range [][2]string{{"tunnel", "net/http"}, {"net/http", "tunnel"}} {
		for failure := range failed[pair[0]] {
			if failed[pair[1]][failure] {
				continue
			}
			fmt.Printf("fails at %s and not at %s: %s\n", pair[0], pair[1], failure)
			if pair[0] == "tunnel" {
				worse++
			}
		}
	}
	for failure := range failed["tunnel"] {
		if failed["net/http"][failure] {
			fmt.Println("fails at both:", failure)
		}
	}
	if worse > 0 {
		return fmt.Errorf("%d cases fail at the tunnel alone", worse)
	}
	return nil
}

// test runs h2spec against a port of this computer and returns how many cases
// there are and the names of those that fail.
func test(port int, report string) (cases int, failures map[string]bool, err error) {
	command := exec.Command("go", "run", tool, "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-j", report)
	output, err := command.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return 0, nil, err
	}
	text, err := os.ReadFile(report) // an exit status says only that a case failed
	if err != nil {
		return 0, nil, fmt.Errorf("%w\n%s", err, output)
	}
	var results struct {
		Suites []struct {
			Cases []struct {
				Package string    `xml:"package,attr"`
				Name    string    `xml:"classname,attr"`
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(text, &results); err != nil {
		return 0, nil, err
	}
	failures = make(map[string]bool)
	for _, suite := range results.Suites {
		for _, c := range suite.Cases {
			cases++
			if c.Failure != nil || c.Error != nil {
				failures[c.Package+": "+c.Name] = true
			}
		}
	}
	return cases, failures, nil
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
