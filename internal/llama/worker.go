package llama

import (
	"bufio"
	"context"
	"crypto/subtle"
	"encoding/json/v2"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/llama/chatform"
)

// secretHeader contains the secret shared by worker and parent: on systems without socket
// files any local program could connect.
const secretHeader = "Kith-Worker"

// workerConfig is the first line on the worker's standard input. At the end of its
// standard input the worker stores its prompts and exits.
type workerConfig struct {
	Libraries string      `json:"libraries"`
	GPUs      []gpuFile   `json:"gpus,omitempty"`
	Network   string      `json:"network"` // unix or tcp
	Address   string      `json:"address"`
	Secret    string      `json:"secret"`
	Models    []ModelFile `json:"models"`
	Slots     int         `json:"slots"`
	Context   int         `json:"context"`
	IdleNanos int64       `json:"idle_ns"`

	Prompts     string `json:"prompts"` // folder of stored prompts
	KeepPrompts int64  `json:"keep_prompts"`
	PromptKey   string `json:"prompt_key"`
}

// workerReport is a line on the worker's standard output. The last one is that the worker is
// ready or cannot be; before are those for the files that it reads.
type workerReport struct {
	Reading  *ModelFile `json:"reading,omitempty"` // the other fields are then zero
	Address  string     `json:"address"`
	Models   []Model    `json:"models"`
	Graphics Graphics   `json:"graphics"`
	Problem  string     `json:"problem,omitempty"`
}

// send writes the report to the parent process.
func (r *workerReport) send() error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(append(line, '\n'))
	return err
}

// templatesArg after WorkerArg makes this program the worker's own child process, which
// renders chat templates.
const templatesArg = "templates"

// newRenderer returns the renderer for the templates of all models.
func newRenderer() (*chatform.Renderer, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find this program: %w", err)
	}
	return chatform.NewRenderer(func() *exec.Cmd {
		cmd := exec.CommandContext(context.Background(), exe, WorkerArg, templatesArg)
		cmd.WaitDelay = time.Second
		return cmd
	}), nil
}

// Worker runs the child process and returns its exit status. The process exits with its
// parent. free returns the free memory of this machine, if known; a model that does not
// fit is not loaded.
func Worker(free func() (bytes uint64, known bool)) int {
	if len(os.Args) > 2 && os.Args[2] == templatesArg {
		return chatform.Serve(os.Stdin, os.Stdout)
	}
	// Go has little to do here, and while it waits for a decode step its runtime keeps the
	// threads of other processors polling: with one it takes a seventh less CPU a token of a
	// small model. llama.cpp's own threads are not limited by it.
	cores()
	runtime.GOMAXPROCS(1)
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		fmt.Fprintln(os.Stderr, "kith: cannot start the inference worker by hand; it is started by kith serve")
		return 2
	}
	var serving atomic.Pointer[server]
	go func() {
		io.Copy(io.Discard, in)
		if s := serving.Load(); s != nil {
			s.leave()
		}
		os.Exit(0)
	}()
	s, handler, report, listener := prepare(line, free)
	serving.Store(s)
	if err := report.send(); err != nil || listener == nil {
		return 1
	}
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	srv.Serve(listener) // until the process exits
	return 1
}

// prepare loads the libraries, inspects the models and listens.
func prepare(line []byte, free func() (bytes uint64, known bool)) (*server, http.Handler, workerReport, net.Listener) {
	var o workerConfig
	if err := json.Unmarshal(line, &o); err != nil {
		return nil, nil, workerReport{Problem: "cannot read its configuration: " + err.Error()}, nil
	}
	lib, err := open(o.Libraries, o.GPUs)
	if err != nil {
		return nil, nil, workerReport{Problem: err.Error()}, nil
	}
	renderer, err := newRenderer()
	if err != nil {
		return nil, nil, workerReport{Problem: err.Error()}, nil
	}
	prompts, err := newPromptStore(o.Prompts, o.KeepPrompts, o.PromptKey)
	if err != nil {
		return nil, nil, workerReport{Problem: err.Error()}, nil
	}
	s := &server{started: time.Now(), prompts: prompts, inspect: func(file ModelFile) (*runner, error) {
		if err := (&workerReport{Reading: &file}).send(); err != nil {
			return nil, err
		}
		spec, err := inspect(lib, renderer, file, o.Slots, o.Context, free)
		if err != nil {
			return nil, err
		}
		return newRunner(spec, time.Duration(o.IdleNanos), prompts), nil
	}}
	models := s.setModels(o.Models)
	listener, err := net.Listen(o.Network, o.Address)
	if err == nil && o.Network == "unix" {
		err = os.Chmod(o.Address, 0o600)
	}
	if err != nil {
		return nil, nil, workerReport{Problem: "cannot listen: " + err.Error()}, nil
	}
	return s, guard(o.Secret, s.handler()), workerReport{Address: listener.Addr().String(), Models: models, Graphics: lib.graphics}, listener
}

// pathModels is the path for changing the models: the supervisor sends a list of
// ModelFile and receives a list of Model.
const pathModels = "/worker/models"

// pathLoaded lists the ids of the models whose weights are in memory. pathLoad and
// pathUnload take a query with the id of a model, and load or free its weights.
const (
	pathLoaded = "/worker/loaded"
	pathLoad   = "/worker/load"
	pathUnload = "/worker/unload"
)

// listLoaded serves pathLoaded.
func (s *server) listLoaded(w http.ResponseWriter, _ *http.Request) {
	ids := []string{}
	s.mu.Lock()
	for id, r := range s.runners {
		if r.inMemory.Load() {
			ids = append(ids, id)
		}
	}
	s.mu.Unlock()
	reply(w, http.StatusOK, ids)
}

// order serves pathLoad and pathUnload.
func (s *server) order(w http.ResponseWriter, r *http.Request) error {
	run, err := s.model(r.URL.Query().Get("model"))
	if err == nil {
		err = run.order(r.Context(), r.URL.Path == pathLoad)
	}
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// changeModels serves pathModels.
func (s *server) changeModels(w http.ResponseWriter, r *http.Request) error {
	var files []ModelFile
	if err := json.UnmarshalRead(r.Body, &files); err != nil {
		return badRequest("%v", err)
	}
	reply(w, http.StatusOK, s.setModels(files))
	return nil
}

// setModels changes the files to serve. A model with an unchanged file keeps running; a
// removed model ends after its current requests.
func (s *server) setModels(files []ModelFile) []Model {
	s.setting.Lock()
	defer s.setting.Unlock()
	models, runners := make([]Model, 0, len(files)), make(map[string]*runner, len(files))
	for _, file := range files {
		if r := s.runners[file.ID]; r != nil && slices.Contains(s.files, file) {
			runners[file.ID], models = r, append(models, r.Model)
			continue
		}
		r, err := s.inspect(file)
		if err != nil {
			models = append(models, Model{ID: file.ID, Problem: err.Error()})
			continue
		}
		runners[file.ID], models = r, append(models, r.Model)
		go r.run()
	}
	s.prompts.keepOnly(files)
	before := s.runners
	s.mu.Lock()
	s.files, s.models, s.runners = files, models, runners
	s.mu.Unlock()
	for id, r := range before {
		if runners[id] != r {
			r.remove()
		}
	}
	return models
}

// leave makes all runners end and waits for them: they store their prompts.
func (s *server) leave() {
	s.setting.Lock() // no model is added
	for _, r := range s.runners {
		r.leave()
	}
	for _, r := range s.runners {
		<-r.ended
	}
}

// guard refuses requests without the secret.
func guard(secret string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get(secretHeader)), []byte(secret)) != 1 {
			refuse(w, &refusal{status: http.StatusForbidden, code: "permission_error", message: "this socket is kith's own"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// socketNetwork returns the network for connections between parent and worker on this
// system.
func socketNetwork() string {
	if runtime.GOOS == "windows" {
		return "tcp"
	}
	return "unix"
}
