package pull

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// maxJobs is how many pulls a Queue has at most, failed ones included.
	maxJobs = 16
	// firstRetry is when a pull is tried again after a temporary failure. It doubles with
	// each further failure up to maxRetry.
	firstRetry = 15 * time.Second
	maxRetry   = 10 * time.Minute
	// jobLife is how long a pull is tried again.
	jobLife = 7 * 24 * time.Hour
	// doneFor is how long a complete pull is listed.
	doneFor = 10 * time.Minute
)

// Job is a pull as it is saved.
type Job struct {
	Reference string    `json:"reference"`
	By        string    `json:"by,omitzero"` // who asked
	At        time.Time `json:"at"`          // when
	// Failed is why it failed; empty: it goes on.
	Failed string `json:"failed,omitzero"`
	// Files are the names of the model's files, once they are known.
	Files []string `json:"files,omitzero"`
}

// JobState is a Job and how far it is.
type JobState struct {
	Job
	ID       string // of the model; empty: not known yet
	Running  bool
	Complete bool // it is listed for a while
	Progress Progress
	// Problem is why it is tried again later; empty: there was no failure.
	Problem string
}

// QueueConfig configures a Queue. All fields are required.
type QueueConfig struct {
	Folder string // for the models
	// Source returns the source of the next pull.
	Source func(context.Context) *Source
	// Check rejects a model before anything of it is fetched.
	Check func(context.Context, *Model) error
	// Save saves all jobs. They are passed to NewQueue at the next start.
	Save func([]Job) error
	Log  *slog.Logger
}

// Queue fetches models one after the other. Each continues after a restart of the process,
// and after a failure that may be over later, until it is complete, fails or is canceled.
type Queue struct {
	config QueueConfig
	wake   chan struct{} // buffered: jobs has changed

	mu   sync.Mutex
	jobs []*job // in the order of Add
	done []*job // complete, at most maxJobs
}

// job is a pull in a Queue. Its fields are guarded by Queue.mu.
type job struct {
	Job
	id        string
	progress  Progress
	problem   string
	failures  int       // temporary ones since the last progress
	notBefore time.Time // of the next try
	complete  time.Time // when it was
	cancel    context.CancelFunc
	ended     chan struct{} // closed when the current try has ended; nil: there is none
}

// NewQueue returns a Queue with the jobs that an earlier one saved. It does nothing before
// Run.
func NewQueue(saved []Job, c QueueConfig) *Queue {
	q := &Queue{config: c, wake: make(chan struct{}, 1)}
	for _, j := range saved[:min(len(saved), maxJobs)] {
		q.jobs = append(q.jobs, &job{Job: j, progress: Progress{Total: -1}})
	}
	return q
}

// Jobs returns the state of all jobs: those that were completed a short while ago, then the
// others in the order of Add.
func (q *Queue) Jobs() []JobState {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.done = slices.DeleteFunc(q.done, func(j *job) bool { return time.Since(j.complete) > doneFor })
	all := make([]JobState, 0, len(q.done)+len(q.jobs))
	for _, j := range slices.Concat(q.done, q.jobs) {
		all = append(all, JobState{
			Job: j.Job, ID: j.id, Running: j.ended != nil, Complete: !j.complete.IsZero(), Progress: j.progress, Problem: j.problem,
		})
	}
	return all
}

// Add adds a job. If there is one for the same reference it stays, and one that failed is
// tried again at once. The reference has passed Source.Check.
func (q *Queue) Add(j Job) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	before := slices.Clone(q.jobs)
	if at := q.find(j.Reference); at >= 0 {
		old := q.jobs[at]
		if old.Failed == "" {
			old.notBefore = time.Time{}
			q.notify()
			return nil
		}
		q.jobs = slices.Delete(q.jobs, at, at+1)
	}
	if len(q.jobs) >= maxJobs {
		return fmt.Errorf("it has %d pulls already: wait for one, or cancel one", maxJobs)
	}
	q.jobs = append(q.jobs, &job{Job: j, progress: Progress{Total: -1}})
	if err := q.save(); err != nil {
		q.jobs = before
		return err
	}
	q.done = slices.DeleteFunc(q.done, func(d *job) bool { return Name(d.Reference) == Name(j.Reference) })
	q.notify()
	return nil
}

// ErrNoJob is returned for a job that a Queue does not have.
var ErrNoJob = errors.New("it is not being pulled")

// Cancel ends the job with a reference, or of a model, and deletes what was fetched of a
// model that is not complete.
func (q *Queue) Cancel(ctx context.Context, name string) error {
	q.mu.Lock()
	at := q.find(name)
	if at < 0 {
		at = slices.IndexFunc(q.jobs, func(j *job) bool { return j.id != "" && j.id == name })
	}
	if at < 0 {
		q.mu.Unlock()
		return ErrNoJob
	}
	j := q.jobs[at]
	q.jobs = slices.Delete(q.jobs, at, at+1)
	err := q.save()
	if j.cancel != nil {
		j.cancel()
	}
	ended := j.ended
	q.mu.Unlock()
	if ended != nil {
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	d := download{folder: q.config.Folder}
	for _, name := range j.Files { // no try changes them any more
		if failed := Forget(d.path(name)); failed != nil && !errors.Is(failed, os.ErrNotExist) {
			err = cmp.Or(err, failed)
		}
	}
	return err
}

// find returns the index of the job with the name of the reference, or -1. mu must be held.
func (q *Queue) find(reference string) int {
	name := Name(reference)
	return slices.IndexFunc(q.jobs, func(j *job) bool { return Name(j.Reference) == name })
}

// Name returns a reference as it may be shown: that of a URL without its query, which may
// be a signature.
func Name(reference string) string {
	name, _, _ := strings.Cut(reference, "?")
	return name
}

// text returns the text of an error of the job without the query of its reference.
func (j *job) text(err error) string {
	return strings.ReplaceAll(err.Error(), j.Reference, Name(j.Reference))
}

// save saves all jobs. mu must be held.
func (q *Queue) save() error {
	jobs := make([]Job, 0, len(q.jobs))
	for _, j := range q.jobs {
		jobs = append(jobs, j.Job)
	}
	if err := q.config.Save(jobs); err != nil {
		return fmt.Errorf("cannot save the list of pulls: %w", err)
	}
	return nil
}

func (q *Queue) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Run fetches the jobs until ctx ends. What was fetched until then is kept.
func (q *Queue) Run(ctx context.Context) error {
	for {
		j, wait := q.next(ctx, time.Now())
		if j != nil {
			q.try(ctx, j)
			continue
		}
		var due <-chan time.Time
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-due:
		case <-q.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// next begins the first job that is due and returns it. If there is none, it returns nil
// and the time until one is due; 0: none will be.
func (q *Queue) next(ctx context.Context, now time.Time) (due *job, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if ctx.Err() != nil {
		return nil, 0
	}
	for _, j := range q.jobs {
		left := j.notBefore.Sub(now)
		switch {
		case j.Failed != "":
		case left <= 0:
			j.ended = make(chan struct{})
			return j, 0
		case wait == 0 || left < wait:
			wait = left
		}
	}
	return nil, wait
}

// try fetches the model of a job, until it is complete or fails.
func (q *Queue) try(ctx context.Context, j *job) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	q.mu.Lock()
	j.cancel = cancel
	if !slices.Contains(q.jobs, j) { // canceled in between
		cancel()
	}
	q.mu.Unlock()
	err := q.fetch(ctx, j)
	q.mu.Lock()
	defer q.mu.Unlock()
	close(j.ended)
	j.ended, j.cancel, j.progress.Waiting = nil, nil, nil
	at := slices.Index(q.jobs, j)
	switch {
	case at < 0: // canceled
		return
	case err == nil:
		q.jobs, j.complete = slices.Delete(q.jobs, at, at+1), time.Now()
		q.done = append(q.done[max(0, len(q.done)-maxJobs+1):], j)
		q.config.Log.Info("a model was pulled", "model", j.id)
	case ctx.Err() != nil: // the process ends
		return
	case errors.As(err, new(temporary)) && time.Since(j.At) < jobLife:
		retry := min(firstRetry<<min(j.failures, 16), maxRetry)
		j.failures++
		j.problem, j.notBefore = j.text(err), time.Now().Add(retry)
		q.config.Log.Warn("a pull is tried again", "model", Name(j.Reference), "cause", j.problem, "again_in", retry)
		return
	default:
		j.Failed = j.text(err)
		q.config.Log.Warn("a pull failed", "model", Name(j.Reference), "cause", j.Failed)
	}
	if err := q.save(); err != nil {
		q.config.Log.Error("a pull that has ended may begin again", "model", Name(j.Reference), "error", err)
	}
}

// begin records the model of a job, so that its files can be deleted after a restart, too.
func (q *Queue) begin(j *job, model *Model) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	j.id, j.problem, j.progress = model.ID, "", Progress{Total: model.Size()}
	j.Files = nil
	for _, f := range model.Files {
		j.Files = append(j.Files, f.Name)
	}
	return q.save()
}

// fetch finds the files of a job and downloads them.
func (q *Queue) fetch(ctx context.Context, j *job) error {
	source := q.config.Source(ctx)
	model, err := source.Resolve(ctx, j.Reference)
	if err == nil {
		err = q.config.Check(ctx, model)
	}
	if err != nil {
		return err
	}
	if err := q.begin(j, model); err != nil {
		return err
	}
	return source.Fetch(ctx, model, q.config.Folder, func(p Progress) {
		q.mu.Lock()
		defer q.mu.Unlock()
		if p.Done > j.progress.Done && !p.Verifying {
			j.failures = 0
		}
		j.progress = p
	})
}
