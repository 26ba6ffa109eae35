package site

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// filesPath is the form that manages a machine's model files, and the page that asks first.
const filesPath = "/machines/files"

const (
	// filesTime is how long a page waits for a machine's list of its model files.
	filesTime = 3 * time.Second
	// An open page of a machine asks for that list at these intervals: while a pull or a load
	// runs, and otherwise.
	filesBusy = time.Second
	filesIdle = 10 * time.Second
)

// filesView are the model files on the page of a machine.
type filesView struct {
	api.MachineFiles
	Asked bool   // the machine was asked; false: it is offline
	Why   string // why there is no list; empty: there is one
}

// Fits lists the recommended models that fit the machine.
func (f filesView) Fits() []fleet.ListedModel {
	return slices.DeleteFunc(slices.Clone(f.List), func(l fleet.ListedModel) bool { return !l.Fits })
}

// fileWords describes whether a model is in memory.
func fileWords(state fleet.FileState) words {
	switch state {
	case fleet.FileLoaded:
		return words{"in memory", "good"}
	case fleet.FileLoading:
		return words{"loading", "warn"}
	}
	return words{text: "not loaded"}
}

// files asks a machine for its model files. If it does not answer, the page is shown without.
func (s *Site) files(ctx context.Context, who fleet.Caller, m fleet.MachineID) filesView {
	live := s.Snapshot().Machine(m)
	if live == nil || !live.Online {
		return filesView{}
	}
	ctx, cancel := context.WithTimeout(ctx, filesTime)
	defer cancel()
	files, err := api.ListFiles.Do(ctx, s.API, who, api.MachineID{Machine: string(m)})
	view := filesView{MachineFiles: files, Asked: true}
	if err != nil {
		view.Why = sentence(fault.Of(err).Message)
	}
	return view
}

// fileButton is a button for an act on a model file. Do is its text.
type fileButton struct{ Machine, Act, Model, Do string }

// busy reports whether something changes by itself.
func (f *filesView) busy() bool {
	return slices.ContainsFunc(f.Pulls, func(p fleet.ModelPull) bool { return p.State == fleet.PullRunning || p.State == fleet.PullWaiting }) ||
		slices.ContainsFunc(f.Files, func(m fleet.ModelFile) bool { return m.State == fleet.FileLoading })
}

// withFiles returns the live content of a machine's page, with that of its model files. The
// progress of pulls is text; everything else needs other buttons, and so another page.
func (a liveContent) withFiles(f *filesView) liveContent {
	a.shape = a.shape.with("files", fmt.Sprint(f.Asked), f.Why)
	for i, m := range f.Files {
		a.shape = a.shape.with(m.ID, string(m.State), m.Problem, fmt.Sprint(m.Size))
		a.texts[fmt.Sprint("file-", i)] = fileWords(m.State)
	}
	for i, p := range f.Pulls {
		a.shape = a.shape.with("pull", p.Model, string(p.State), p.Problem)
		a.texts[fmt.Sprint("pull-", i)] = pullWords(p)
	}
	return a.withGauges(f)
}

func (f *filesView) content() liveContent { return liveContent{texts: map[string]words{}}.withFiles(f) }

// pullWords describes how far a pull is.
func pullWords(p fleet.ModelPull) words {
	switch {
	case p.State == fleet.PullFailed:
		return words{"failed", "bad"}
	case p.State == fleet.PullDone:
		return words{"complete", "good"}
	case p.Problem != "":
		return words{"retrying", "warn"}
	case p.State == fleet.PullWaiting:
		return words{text: "queued"}
	case p.File == "":
		return words{text: "searching"}
	}
	text := size(p.Done)
	if p.Total > 0 {
		text = fmt.Sprintf("%d %%, %s of %s", p.Done*100/p.Total, size(p.Done), size(p.Total))
	}
	if p.Verifying {
		return words{text: "verifying: " + text}
	}
	return words{text: text}
}

// filesWatch asks a machine for its model files while its page is open.
type filesWatch struct {
	site    *Site
	who     fleet.Caller
	machine fleet.MachineID
	now     atomic.Pointer[filesView]
}

// look asks once. It returns the pause until the next time.
func (w *filesWatch) look(ctx context.Context) time.Duration {
	next := w.site.files(ctx, w.who, w.machine)
	last := w.now.Swap(&next)
	if last != nil && !next.content().equal(last.content()) {
		w.site.MarkChanged()
	}
	if next.busy() {
		return filesBusy
	}
	return filesIdle
}

func (w *filesWatch) run(ctx context.Context, pause time.Duration) {
	for {
		select {
		case <-time.After(pause):
			pause = w.look(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// machineStream handles GET /live/machines/{machine}: the stream of the page of one machine.
func (s *Site) machineStream(v *visit) (reply, error) {
	m, err := s.ownMachine(v, v.PathValue("machine"))
	if err != nil {
		return reply{}, err
	}
	if !wantsStream(v) {
		return reply{to: "/machines/" + m.ID}, nil
	}
	return s.whileSignedIn(v, func(ctx context.Context, w http.ResponseWriter) error {
		ctx, cancel := context.WithCancel(ctx)
		watch := &filesWatch{site: s, who: v.caller(), machine: fleet.MachineID(m.ID)}
		pause := watch.look(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			watch.run(ctx, pause)
		}()
		defer func() { cancel(); <-ended }()
		return s.follow(ctx, w, v.caller(), func(s *Site, hub *hubView, who fleet.Caller) liveContent {
			return machinesContent(s, hub, who).withFiles(watch.now.Load())
		})
	}), nil
}

// fileChange reads an act on model files from a form or the address of a question.
func fileChange(form url.Values) api.FileChange {
	return api.FileChange{Machine: form.Get("machine"), Act: fleet.FileVerb(form.Get("act")), Model: strings.TrimSpace(form.Get("model"))}
}

// changeFiles handles POST /machines/files. It needs the password or a recent sign-in, which
// a page asks for.
func (s *Site) changeFiles(v *visit) (reply, error) {
	in := fileChange(v.form)
	if !s.recent(v) && v.form.Get("old") == "" {
		ask := url.Values{"machine": {in.Machine}, "act": {string(in.Act)}, "model": {in.Model}}
		return reply{to: filesPath + "?" + ask.Encode()}, nil
	}
	if err := s.checkRecent(v); err != nil {
		return reply{}, err
	}
	out, err := call(s, v, api.ChangeFiles, in)
	return reply{to: s.placeOf(v), done: changedFiles(in, out)}, err
}

// changedFiles is the confirmation message of an act.
func changedFiles(in api.FileChange, out api.MachineFiles) string {
	switch in.Act {
	case fleet.ActPull:
		return out.Machine + " is pulling " + in.Model + "; this page shows its progress."
	case fleet.ActCancel:
		return "Pull canceled, and the partial download deleted."
	case fleet.ActRemove:
		return in.Model + " is removed."
	case fleet.ActUnload:
		return in.Model + " is unloaded. Its next call loads it again."
	}
	if file, _ := out.File(in.Model); file.State == fleet.FileLoaded {
		return in.Model + " is loaded."
	}
	return out.Machine + " is loading " + in.Model + "; this page shows when that is done."
}

// filesQuestion returns the confirmation page for an act on model files.
func (s *Site) filesQuestion(v *visit) (question, error) {
	in := fileChange(v.URL.Query())
	m, err := s.ownMachine(v, in.Machine)
	if err != nil {
		return question{}, err
	}
	text, known := map[fleet.FileVerb]struct{ title, button, cut string }{
		fleet.ActPull:   {"Pull %s on %s?", "Pull the model", "The machine downloads it over its own connection and keeps it on its disk."},
		fleet.ActCancel: {"Cancel the pull of %s on %s?", "Cancel the pull", "The partial download is deleted."},
		fleet.ActRemove: {"Remove %s from %s?", "Remove the model", "Its files are deleted. Everyone who uses it through you loses access to it."},
		fleet.ActLoad:   {"Load %s on %s?", "Load the model", "It takes up memory now instead of at its first call."},
		fleet.ActUnload: {"Unload %s on %s?", "Unload the model", "Its memory is freed. Its next call loads it again."},
	}[in.Act]
	if !known {
		return question{}, fault.New(fault.InvalidRequest, "there is no such act on model files").WithParam("act")
	}
	q := question{
		Title: fmt.Sprintf(text.title, cmp.Or(in.Model, "a model"), m.Name), Button: text.button, Action: filesPath, Back: machineAddress(m.ID, modelsTab),
		Field: "machine", Value: m.ID, More: []hiddenField{{"act", string(in.Act)}, {"model", in.Model}}, Cuts: []string{text.cut},
	}
	if s.recent(v) {
		return q, nil
	}
	if q.Password, err = s.hasPassword(v); !q.Password {
		q.SignIn = "/signin?" + url.Values{"next": {v.URL.RequestURI()}}.Encode()
	}
	return q, err
}
