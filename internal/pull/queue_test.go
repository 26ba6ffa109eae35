package pull

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shirou/gopsutil/v4/disk"

	"github.com/kith/kith/internal/assert"
)

// rig is a Queue on a model hub, and what it saved.
type rig struct {
	*Queue
	folder string
	saved  []Job
	reject error // of Check
}

func newRig(t *testing.T, s *Source, saved ...Job) *rig {
	r := &rig{folder: t.TempDir()}
	r.start(s, saved)
	return r
}

// open returns the jobs that are not complete.
func (r *rig) open() []JobState {
	return slices.DeleteFunc(r.Jobs(), func(j JobState) bool { return j.Complete })
}

func (r *rig) start(s *Source, saved []Job) {
	r.Queue = NewQueue(saved, QueueConfig{
		Folder: r.folder, Source: func(context.Context) *Source { return s },
		Check: func(context.Context, *Model) error { return r.reject },
		Save:  func(jobs []Job) error { r.saved = slices.Clone(jobs); return nil },
		Log:   slog.New(slog.DiscardHandler),
	})
}

// run runs the queue until the returned function is called.
func (r *rig) run(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Run(ctx)
	}()
	return func() { cancel(); <-ended }
}

// TestQueue: pulls run one after the other, in their order, and a restart in the middle of one
// continues it where it was.
func TestQueue(t *testing.T) {
	inBubble(t, func(t *testing.T, h *modelHub, s *Source) {
		hold := true
		h.fault = func(w http.ResponseWriter, r *http.Request) bool {
			if !hold || r.Method != http.MethodGet {
				return false
			}
			w.Header().Set("Content-Length", "300000")
			_, _ = w.Write(h.files["words-Q4_K_M.gguf"][:100_000])
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return true
		}
		r := newRig(t, s)
		stop := r.run(t)
		now := time.Now()
		assert.OK(t, r.Add(Job{Reference: "ann/words", By: "laptop", At: now}))
		assert.OK(t, r.Add(Job{Reference: "ann/words:Q8_0", At: now}))
		assert.OK(t, r.Add(Job{Reference: "ann/words", At: now})) // once
		synctest.Wait()
		jobs := r.Jobs()
		assert.Equal(t, len(jobs), 2, "jobs")
		assert.That(t, jobs[0].Running && !jobs[1].Running, "running")
		assert.Equal(t, jobs[0].ID, "words-Q4_K_M", "the model's id")
		assert.Equal(t, jobs[0].Progress.Done, 100_000, "bytes")
		stop()
		hold = false
		kept := r.saved
		assert.Equal(t, fmt.Sprintln(len(kept), kept[0].Reference, kept[0].By, kept[0].Files), "2 ann/words laptop [words-Q4_K_M.gguf]\n", "saved")

		r.start(s, kept)
		stop = r.run(t)
		defer stop()
		synctest.Wait()
		jobs = r.Jobs()
		assert.That(t, len(jobs) == 2 && jobs[0].Complete && jobs[1].Complete && jobs[1].ID == "words-Q8_0", "the jobs are", jobs)
		assert.Equal(t, len(r.saved), 0, "saved jobs")
		assert.That(t, slices.Contains(h.ranges, "bytes=100000-"), "the rest was not asked for", h.ranges)
		h.holds(r.folder, map[string]string{"words-Q4_K_M.gguf": "words-Q4_K_M.gguf", "words-Q8_0.gguf": "words-Q8_0.gguf"})
		time.Sleep(doneFor + time.Second)
		assert.Equal(t, len(r.Jobs()), 0, "jobs, a while later")
	})
}

// TestQueueTriesAgain: a network that is away ends no pull, which delays none after it; what
// cannot succeed ends at once, and begins again when it is asked for again.
func TestQueueTriesAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, h *modelHub, s *Source) {
		r := newRig(t, s)
		stop := r.run(t)
		defer stop()
		assert.OK(t, r.Add(Job{Reference: "http://nowhere.test/a.gguf", At: time.Now()}))
		assert.OK(t, r.Add(Job{Reference: "ann/words:Q5", At: time.Now()}))
		assert.OK(t, r.Add(Job{Reference: "ann/words", At: time.Now()}))
		synctest.Wait()
		jobs := r.open()
		assert.Equal(t, len(jobs), 2, "jobs")
		assert.That(t, jobs[0].Failed == "" && strings.Contains(jobs[0].Problem, "nowhere.test cannot be reached"), jobs[0])
		assert.That(t, strings.Contains(jobs[1].Failed, "none is Q5"), jobs[1])
		assert.Equal(t, r.saved[1].Failed, jobs[1].Failed, "saved")
		h.files["words-Q5.gguf"] = noise("more", 1000)
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.That(t, len(r.open()) == 2 && r.open()[1].Failed != "", "a failed pull was tried again by itself")
		assert.OK(t, r.Add(Job{Reference: "ann/words:Q5", At: time.Now()}))
		synctest.Wait()
		assert.Equal(t, len(r.open()), 1, "jobs after it was asked for again")
		time.Sleep(jobLife)
		synctest.Wait()
		assert.That(t, strings.Contains(r.open()[0].Failed, "cannot be reached"), "tried forever", r.open()[0])
	})
}

// TestQueueBounds: the number of pulls, the disk while a file comes, and models that the
// machine cannot run.
func TestQueueBounds(t *testing.T) {
	inBubble(t, func(t *testing.T, h *modelHub, s *Source) {
		r := newRig(t, s)
		for i := range maxJobs {
			assert.OK(t, r.Add(Job{Reference: fmt.Sprint("ann/words:", i)}))
		}
		assert.Fails(t, r.Add(Job{Reference: "ann/words:more"}), "16 pulls already")
		assert.Equal(t, len(NewQueue(append(r.saved, r.saved...), r.config).Jobs()), maxJobs, "jobs of a file with more")

		r = newRig(t, s)
		r.reject = errors.New("it needs more memory")
		stop := r.run(t)
		assert.OK(t, r.Add(Job{Reference: "ann/words"}))
		synctest.Wait()
		assert.Equal(t, r.Jobs()[0].Failed, "it needs more memory", "failed")
		assert.Equal(t, len(h.ranges), 0, "requests for files")
		stop()

		free := []uint64{1 << 40, spare / 3}
		diskUsage = func(string) (*disk.UsageStat, error) {
			now := free[0]
			free = free[min(1, len(free)-1):]
			return &disk.UsageStat{Free: now}, nil
		}
		defer func() { diskUsage = disk.Usage }()
		r = newRig(t, s)
		stop = r.run(t)
		defer stop()
		assert.OK(t, r.Add(Job{Reference: "ann/words"}))
		synctest.Wait()
		assert.Contains(t, r.Jobs()[0].Failed, "has only 89 MB free while words-Q4_K_M.gguf comes: make room")
	})
}

// TestQueueCancel deletes what was fetched, of a pull that runs and of one from before a
// restart.
func TestQueueCancel(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		inBubble(t, func(t *testing.T, h *modelHub, s *Source) {
			h.fault = func(w http.ResponseWriter, r *http.Request) bool {
				w.Header().Set("Content-Length", "300000")
				_, _ = w.Write(h.files["words-Q4_K_M.gguf"][:100_000])
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
				return true
			}
			r := newRig(t, s)
			stop := r.run(t)
			assert.OK(t, r.Add(Job{Reference: "ann/words", At: time.Now()}))
			synctest.Wait()
			if restarted {
				stop()
				r.start(s, r.saved)
				stop = func() {}
			}
			defer stop()
			assert.Is(t, r.Cancel(t.Context(), "ann/other"), ErrNoJob, "another one")
			name := "words-Q4_K_M"
			if restarted {
				name = "ann/words"
			}
			assert.OK(t, r.Cancel(t.Context(), name))
			assert.Equal(t, len(r.Jobs())+len(r.saved), 0, "jobs")
			h.holds(r.folder, nil)
		})
	}
}

// TestCheck: what a reference from elsewhere may name.
func TestCheck(t *testing.T) {
	own := &Source{Endpoint: "http://127.0.0.1:1"}
	elsewhere := &Source{Endpoint: own.Endpoint, Public: true}
	for reference, wants := range map[string][2]string{ // on this machine; from elsewhere
		"qwen3-0.6b":                             {"", ""},
		"hf.co/ann/words:Q4":                     {"", ""},
		"http://127.0.0.1:1/ann/words":           {"", ""}, // the owner's model hub
		"https://files.test/words.gguf":          {"", ""},
		"https://files.test/words.gguf?secret=a": {"", ""},
		"https://files.test/words.bin":           {"not a GGUF file", "not a GGUF file"},
		"https://ann:pass@files.test/w.gguf":     {"", "has a password in it"},
		"http://127.0.0.1/w.gguf":                {"", "its own network"},
		"http://localhost:8701/w.gguf":           {"", "its own network"},
		"http://[::1]/w.gguf":                    {"", "its own network"},
		"http://192.168.1.1/w.gguf":              {"", "its own network"},
		"http://[::ffff:10.0.0.1]/w.gguf":        {"", "its own network"},
		"http://169.254.169.254/w.gguf":          {"", "its own network"},
		"http://1.1.1.1/w.gguf":                  {"", ""},
		"ftp://files.test/words.gguf":            {"neither https", "neither https"},
		"ann/words/more":                         {"neither a name", "neither a name"},
		"../words":                               {"neither a name", "neither a name"},
		"ann/..":                                 {"neither a name", "neither a name"},
		"ann/w?x=1":                              {"neither a name", "neither a name"},
		"hf.co/ann/../../whoami":                 {"neither a name", "neither a name"},
		"http://127.0.0.1:1/../whoami":           {"does not contain", "does not contain"},
		"words":                                  {"neither a name", "neither a name"},
		"":                                       {"neither a name", "neither a name"},
	} {
		for i, s := range []*Source{own, elsewhere} {
			got := ""
			if err := s.Check(reference); err != nil {
				got = err.Error()
			}
			assert.That(t, strings.Contains(got, wants[i]) && (wants[i] == "") == (got == ""), reference, got)
		}
	}
}
