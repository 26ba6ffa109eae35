//go:build linux

// Nodes is kith for the tests of several hub nodes: `kith hub` runs three of them behind
// one address, and `kith dev` has --nodes 3. Each other command is kith's own. Tests of
// one hub run against three by it, as KITH_BIN (scripts/cluster.sh). It is built with the
// path of the kith that it runs.
//
// The address accepts connections for each node in turn. The first node has the data
// folder and the admin address of the command line, so that the operator's commands use
// that one.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/pelletier/go-toml/v2"

	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/postgres"
)

const nodes = 3

var kith string // set by the linker

func main() {
	log.SetFlags(0)
	args := os.Args[1:]
	switch {
	case len(args) > 0 && args[0] == "hub" && !slices.Contains(args, "--help"):
		if err := hub(args[1:]); err != nil {
			log.Fatal("nodes: ", err)
		}
		return
	case len(args) > 0 && args[0] == "dev":
		args = slices.Insert(args, 1, fmt.Sprintf("--nodes=%d", nodes)) // the last one wins
	}
	log.Fatal("nodes: ", kith, ": ", syscall.Exec(kith, append([]string{"kith"}, args...), os.Environ()))
}

// hub runs the nodes until it is interrupted. They are killed with this process.
func hub(args []string) error {
	var config, data, listen, admin string
	flags := flag.NewFlagSet("hub", flag.ContinueOnError)
	flags.StringVar(&config, "config", "", "")
	flags.StringVar(&data, "data", "", "")
	flags.StringVar(&listen, "listen", "", "")
	flags.StringVar(&admin, "admin", "", "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", listen) // who connects early waits
	if err != nil {
		return err
	}
	database, err := postgres.Start(postgres.Config{Data: filepath.Join(data, "postgres"), Settings: []string{"fsync=off"}})
	if err != nil {
		return err
	}
	defer database.Close()
	runtime.LockOSThread() // Pdeathsig is sent when the thread that started a process ends
	var at []string
	var running []*exec.Cmd
	linked := make(chan struct{}, nodes*nodes*100)
	for i := range nodes {
		n := node{name: fmt.Sprintf("node%d", i+1), data: data, admin: admin, public: "http://" + listen, linked: linked}
		if i > 0 {
			n.data, n.admin = filepath.Join(data, n.name), ""
		}
		address, cmd, err := n.start(config, database.URL("postgres"))
		if err != nil {
			return err
		}
		at, running = append(at, address), append(running, cmd)
	}
	for range nodes * (nodes - 1) {
		<-linked
	}
	go balance(listener, at)
	<-interrupted
	listener.Close()
	var errs []error
	for _, cmd := range running {
		errs = append(errs, cmd.Process.Signal(os.Interrupt))
	}
	for _, cmd := range running {
		errs = append(errs, cmd.Wait())
	}
	return errors.Join(errs...)
}

// node is how one node starts.
type node struct {
	name, data, admin, public string
	linked                    chan<- struct{} // one for each link to another node
}

// start starts a node with the settings of a configuration file and its own, and returns
// its address.
func (n *node) start(file, database string) (address string, cmd *exec.Cmd, err error) {
	settings := make(map[string]any)
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", nil, err
		}
		if err := toml.Unmarshal(text, &settings); err != nil {
			return "", nil, err
		}
	}
	own, _ := settings["hub"].(map[string]any)
	if own == nil {
		own = make(map[string]any)
	}
	own["node"] = n.name
	if own["public_url"] == nil {
		own["public_url"] = n.public
	}
	settings["hub"] = own
	settings["database"] = map[string]any{"url": database}
	settings["peer"] = map[string]any{"listen": "127.0.0.1:0"}
	text, err := toml.Marshal(settings)
	if err == nil {
		err = os.MkdirAll(n.data, 0o700)
	}
	path := filepath.Join(n.data, "node.toml")
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		return "", nil, err
	}
	address = enginetest.FreeAddress()
	cmd = exec.Command(kith, "hub", "--config", path, "--data", n.data, "--listen", address, "--admin", n.admin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	errs, err := cmd.StderrPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	go n.log(errs)
	return address, cmd, nil
}

// log passes a node's log on and looks in it for the links to other nodes.
func (n *node) log(from io.Reader) {
	for lines := bufio.NewScanner(from); lines.Scan(); {
		fmt.Fprintln(os.Stderr, n.name+":", lines.Text())
		if strings.Contains(lines.Text(), "connected to another hub node") {
			n.linked <- struct{}{}
		}
	}
}

// balance passes each connection on to the next of the addresses that accepts it.
func balance(listener net.Listener, addresses []string) {
	for turn := 0; ; turn++ {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer client.Close()
			for i := range addresses {
				server, err := net.Dial("tcp", addresses[(turn+i)%len(addresses)])
				if err == nil {
					relay(client.(*net.TCPConn), server.(*net.TCPConn))
					return
				}
			}
		}()
	}
}

// relay copies bytes both ways until both ends have ended.
func relay(a, b *net.TCPConn) {
	defer b.Close()
	var both sync.WaitGroup
	for _, way := range [][2]*net.TCPConn{{a, b}, {b, a}} {
		both.Go(func() {
			_, err := io.Copy(way[0], way[1])
			if err != nil {
				way[0].Close()
				return
			}
			_ = way[0].CloseWrite()
		})
	}
	both.Wait()
}
