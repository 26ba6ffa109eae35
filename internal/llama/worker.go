package llama

import (
	"bufio"
	"crypto/subtle"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"time"

	"github.com/go-json-experiment/json"
)

// headerSecret carries the secret that only the worker and its parent know: on
// systems without sockets in the file system any local program could connect.
const headerSecret = "Kith-Worker"

// order is the first line on the worker's standard input: what to serve. The
// rest of standard input is the life line: when it ends, the worker does.
type order struct {
	Libraries string      `json:"libraries"`
	Network   string      `json:"network"` // unix or tcp
	Address   string      `json:"address"`
	Secret    string      `json:"secret"`
	Models    []ModelFile `json:"models"`
	Slots     int         `json:"slots"`
	Context   int         `json:"context"`
	IdleNanos int64       `json:"idle_ns"`
}

// hello is the worker's one line on standard output: it is ready, or why not.
type hello struct {
	Address string  `json:"address"`
	Models  []Model `json:"models"`
	Problem string  `json:"problem,omitempty"`
}

// Worker is the whole life of the child process; it returns the exit status.
// It ends when its parent does, whatever it is computing. free reads how much
// memory this machine has left, if that is known: what does not fit is not loaded.
func Worker(free func() (bytes uint64, known bool)) int {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		fmt.Fprintln(os.Stderr, "kith: cannot start the inference worker by hand; it is started by kith serve")
		return 2
	}
	go func() {
		io.Copy(io.Discard, in)
		os.Exit(0)
	}()
	handler, said, listener := prepare(line, free)
	report, err := json.Marshal(said)
	if err != nil {
		return 1
	}
	if _, err := os.Stdout.Write(append(report, '\n')); err != nil || listener == nil {
		return 1
	}
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	srv.Serve(listener) // never ends but with the process
	return 1
}

// prepare loads the libraries, looks at the models and listens.
func prepare(line []byte, free func() (bytes uint64, known bool)) (http.Handler, hello, net.Listener) {
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return nil, hello{Problem: "cannot read its order: " + err.Error()}, nil
	}
	lib, err := open(o.Libraries)
	if err != nil {
		return nil, hello{Problem: err.Error()}, nil
	}
	s := &server{runners: map[string]*runner{}, started: time.Now()}
	for _, file := range o.Models {
		spec, err := inspect(lib, file, o.Slots, o.Context)
		if err != nil {
			s.models = append(s.models, Model{ID: file.ID, Problem: err.Error()})
			continue
		}
		spec.free = free
		r := newRunner(spec, time.Duration(o.IdleNanos))
		s.runners[file.ID] = r
		s.models = append(s.models, spec.Model)
		go r.run()
	}
	listener, err := net.Listen(o.Network, o.Address)
	if err == nil && o.Network == "unix" {
		err = os.Chmod(o.Address, 0o600)
	}
	if err != nil {
		return nil, hello{Problem: "cannot listen: " + err.Error()}, nil
	}
	return guard(o.Secret, s.handler()), hello{Address: listener.Addr().String(), Models: s.models}, listener
}

// guard lets only the parent in.
func guard(secret string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get(headerSecret)), []byte(secret)) != 1 {
			refuse(w, &refusal{http.StatusForbidden, "permission_error", "this socket is kith's own"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// socketNetwork is how parent and worker speak on this system.
func socketNetwork() string {
	if runtime.GOOS == "windows" {
		return "tcp"
	}
	return "unix"
}
