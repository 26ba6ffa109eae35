package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/pull"
)

const (
	// watchEvery is how often a command asks another machine how far a pull or a load is.
	watchEvery = 500 * time.Millisecond
	// lostFor is how long a command goes on while the machine or the hub does not answer.
	lostFor = 10 * time.Minute
)

// filesAt are the model files of a machine: this one's, by the daemon's socket, or those of
// another machine of the member, by the hub.
type filesAt struct {
	*client
	name string // of the machine; empty: this one
	path string // of its model files
}

// onFlag adds the flag --on to a command.
func (a *app) onFlag(cmd *cobra.Command, on *string) {
	cmd.Flags().StringVar(on, "on", "", "another machine of yours, by its name")
	_ = cmd.RegisterFlagCompletionFunc("on", // it exists
		func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			return a.complete(cmd.Context(), typed, a.machineNames())
		})
}

// machineNames lists the names of the member's machines.
func (a *app) machineNames() source {
	return rowsOf(a, api.ListMachines, func(m api.Machine) []string { return []string{m.Name} })
}

// modelFilesOn lists the ids of the model files of the machine that on names, or of this one.
func (a *app) modelFilesOn(on *string) []source {
	return []source{func(ctx context.Context) []string {
		if *on == "" {
			files, _ := a.ownModelFiles() // after an error there are none
			return convert(files, func(f modelFile) string { return f.ID })
		}
		at, err := a.filesOn(ctx, *on)
		if err != nil {
			return nil
		}
		now, _, _ := at.act(ctx, "complete", fleet.FileAct{Act: fleet.ActList}) // no files after an error
		return convert(now.Files, func(f fleet.ModelFile) string { return f.ID })
	}}
}

// filesOn returns the model files of a machine of the member, by its name or id; "" is this
// machine. No key may manage them, so it uses this machine's credential.
func (a *app) filesOn(ctx context.Context, name string) (*filesAt, error) {
	config, saved, err := a.credential()
	if name == "" && config != nil {
		return &filesAt{control(config.Daemon.Data), "", "/models"}, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notSignedIn("cannot manage models on %s: this machine is not signed in; run `kith login --hub URL`", name)
	}
	if err != nil {
		return nil, err
	}
	hub := asMachine(saved)
	machines, _, err := fetch(ctx, hub, "find your machine "+name, api.ListMachines.With(api.None{}))
	if err != nil {
		return nil, err
	}
	names := convert(machines.Data, func(m api.Machine) string { return m.Name })
	at := slices.IndexFunc(machines.Data, func(m api.Machine) bool { return m.Name == name || m.ID == name })
	if at < 0 {
		return nil, wrongUse("cannot manage models on %s: you have no machine of that name; yours are %s", name, strings.Join(names, ", "))
	}
	m := machines.Data[at]
	return &filesAt{hub, m.Name, api.ListFiles.With(api.MachineID{Machine: m.ID}).Path}, nil
}

// act carries out an act, and returns the state of the files after it and its JSON.
func (f *filesAt) act(ctx context.Context, doing string, act fleet.FileAct) (now fleet.ModelFiles, text []byte, err error) {
	r := request{http.MethodPost, f.path, act}
	if act.Act == fleet.ActList && f.name != "" {
		r = request{http.MethodGet, f.path, nil}
	}
	text, err = f.call(ctx, doing, r, &now)
	return now, text, err
}

// where names the machine for people.
func (f *filesAt) where() string {
	if f.name == "" {
		return "this machine"
	}
	return f.name
}

// flag is the flag that a command for the machine needs.
func (f *filesAt) flag() string {
	if f.name == "" {
		return ""
	}
	return " --on " + f.name
}

// listFilesOn prints the model files of another machine, and its pulls.
func (a *app) listFilesOn(ctx context.Context, on string) error {
	at, err := a.filesOn(ctx, on)
	if err != nil {
		return err
	}
	now, text, err := at.act(ctx, "list the models on "+on, fleet.FileAct{Act: fleet.ActList})
	if err != nil {
		return err
	}
	if a.json {
		return a.writeJSON(text)
	}
	if len(now.Files) > 0 || len(now.Pulls) == 0 {
		a.table("MODEL SIZE STATE", convert(now.Files, func(f fleet.ModelFile) []string {
			return []string{f.ID, pull.Bytes(f.Size), fileText(f)}
		}))
	}
	a.showPulls(now, at, len(now.Files) > 0)
	if len(now.Files)+len(now.Pulls) == 0 {
		_, _ = fmt.Fprintf(a.err, "`kith pull%s` lists models that fit that machine\n", at.flag()) // only a hint
	}
	return nil
}

// fileText describes the state of a model file.
func fileText(f fleet.ModelFile) string {
	state := string(f.State)
	if f.State == fleet.FileUnloaded {
		state = "not loaded"
	}
	if f.Problem != "" {
		state += ": " + f.Problem
	}
	return state
}

// showPulls prints the pulls of a machine, if it has any, and how to end or repeat them. below
// reports that something is printed above.
func (a *app) showPulls(now fleet.ModelFiles, at *filesAt, below bool) {
	if len(now.Pulls) == 0 {
		return
	}
	if below {
		a.say("\n")
	}
	a.table("PULL STATE BY", convert(now.Pulls, func(p fleet.ModelPull) []string {
		return []string{p.Model, pullText(p), cmp.Or(p.By, "this machine")}
	}))
	for _, p := range now.Pulls {
		if p.Problem != "" {
			a.say("\n%s: %s\n", p.Model, p.Problem)
		}
	}
	var hints []string
	has := func(is func(fleet.PullState) bool) bool {
		return slices.ContainsFunc(now.Pulls, func(p fleet.ModelPull) bool { return is(p.State) })
	}
	if has(func(s fleet.PullState) bool { return s != fleet.PullDone }) {
		hints = append(hints, "`kith pull MODEL"+at.flag()+" --cancel` ends a pull")
	}
	if has(func(s fleet.PullState) bool { return s == fleet.PullFailed }) && at.name != "" {
		hints = append(hints, "`kith pull MODEL"+at.flag()+"` begins a failed one again")
	}
	if hints != nil {
		a.say("\n")
		a.note(strings.Join(hints, "; "))
	}
}

// showOwnPulls prints the pulls of this machine's daemon, if it has any.
func (a *app) showOwnPulls(ctx context.Context) {
	at, err := a.filesOn(ctx, "")
	if err != nil {
		return
	}
	if now, _, err := at.act(ctx, "list the pulls", fleet.FileAct{Act: fleet.ActList}); err == nil { // not one of a build without them
		a.showPulls(now, at, true)
	}
}

// pullText describes how far a pull is.
func pullText(p fleet.ModelPull) string {
	switch {
	case p.State == fleet.PullDone, p.State == fleet.PullFailed:
		return string(p.State)
	case p.Problem != "":
		return "retrying"
	case p.State == fleet.PullWaiting:
		return "queued"
	case p.Total > 0:
		return fmt.Sprintf("%d %% of %s", p.Done*100/p.Total, pull.Bytes(p.Total))
	}
	return pull.Bytes(p.Done)
}

// listPullableOn prints the list of models and which of them fit another machine.
func (a *app) listPullableOn(ctx context.Context, on string) error {
	at, err := a.filesOn(ctx, on)
	if err != nil {
		return err
	}
	now, _, err := at.act(ctx, "list models for "+on, fleet.FileAct{Act: fleet.ActList})
	if err != nil {
		return err
	}
	return a.print(now.List, func() {
		a.table(pullableHeadings, convert(now.List, pullableRow))
		if now.Memory > 0 {
			a.say("\n")
			a.note("FITS: in " + pull.Bytes(now.Memory) + " of memory of " + on + "; " + pull.Bytes(now.DiskFree) + " of its disk are free. Any other model: kith pull hf.co/ORG/REPO:QUANT --on " + on)
		}
	})
}

func (a *app) cancelPull(ctx context.Context, model, on string) error {
	at, err := a.filesOn(ctx, on)
	if err != nil {
		return err
	}
	_, text, err := at.act(ctx, "cancel the pull of "+model, fleet.FileAct{Act: fleet.ActCancel, Model: model})
	switch {
	case err != nil:
		return err
	case a.json:
		return a.writeJSON(text)
	}
	a.say("the pull of %s on %s is canceled, and what was fetched is deleted\n", strong(model), at.where())
	return nil
}

func (a *app) removeOn(ctx context.Context, id, on string) error {
	at, err := a.filesOn(ctx, on)
	if err != nil {
		return err
	}
	doing := "delete " + id + " on " + on
	before, _, err := at.act(ctx, doing, fleet.FileAct{Act: fleet.ActList})
	if err != nil {
		return err
	}
	if _, _, err := at.act(ctx, doing, fleet.FileAct{Act: fleet.ActRemove, Model: id}); err != nil {
		return err
	}
	freed, _ := before.File(id)
	return a.print(map[string]any{"id": id, "machine": at.name, "freed": freed.Size}, func() {
		a.say("deleted %s on %s; %s are free again there\n", strong(id), at.where(), pull.Bytes(freed.Size))
	})
}

// orderModel returns the command that loads or unloads a model.
func (a *app) orderModel(name string, verb fleet.FileVerb) *cobra.Command {
	var on string
	cmd := a.completing(a.modelFilesOn(&on), command("kith models "+name, func(ctx context.Context, args []string) error {
		at, err := a.filesOn(ctx, on)
		if err != nil {
			return err
		}
		id, doing := args[0], name+" "+args[0]
		if on != "" {
			doing += " on " + on
		}
		now, _, err := at.act(ctx, doing, fleet.FileAct{Act: verb, Model: id})
		var file fleet.ModelFile
		for err == nil {
			var ok bool
			if file, ok = now.File(id); !ok {
				return fmt.Errorf("cannot %s: its files were removed in the meantime", doing)
			}
			if file.State != fleet.FileLoading {
				break
			}
			a.progress("loading " + id + " on " + at.where())
			if err := wait(ctx, watchEvery); err != nil {
				return fmt.Errorf("cannot finish: interrupted; %s goes on loading %s, and `kith models unload %s%s` frees its memory again", at.where(), id, id, at.flag())
			}
			now, _, err = at.act(ctx, doing, fleet.FileAct{Act: fleet.ActList})
		}
		a.progress("")
		switch loaded := file.State == fleet.FileLoaded; {
		case err != nil:
			return err
		case verb == fleet.ActLoad && !loaded:
			return fmt.Errorf("cannot %s: %s", doing, cmp.Or(file.Problem, "it was unloaded in the meantime"))
		}
		return a.print(file, func() {
			if verb == fleet.ActUnload {
				a.say("%s is out of the memory of %s; the next call loads it again\n", strong(id), at.where())
				return
			}
			a.say("%s is in the memory of %s\n", strong(id), at.where())
		})
	}))
	a.onFlag(cmd, &on)
	return cmd
}

// pulledOn is the output of `kith pull --on --json`.
type pulledOn struct {
	ID      string `json:"id"`
	Machine string `json:"machine"`
	Size    int64  `json:"size"`    // bytes
	Served  bool   `json:"offered"` // the machine offers it
}

// pullOn has another machine pull a model, shows the progress, and waits until the machine
// offers the model. The pull does not need this command.
func (a *app) pullOn(ctx context.Context, model, on string) error {
	at, err := a.filesOn(ctx, on)
	if err != nil {
		return err
	}
	doing := "pull " + model + " on " + on
	now, _, err := at.act(ctx, doing, fleet.FileAct{Act: fleet.ActPull, Model: model})
	if err != nil {
		return err
	}
	watch := pullWatch{app: a, at: at, model: pull.Name(model), meter: rate{began: time.Now()}, heard: time.Now()}
	file, err := watch.run(ctx, now)
	a.progress("")
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("cannot finish: interrupted; %s goes on with the pull: `kith models%s` shows it, and `kith pull %s%s --cancel` ends it",
			at.where(), at.flag(), watch.model, at.flag())
	case errors.As(err, new(lostSight)):
		return fmt.Errorf("%w; the pull goes on there: `kith models%s` shows it", err, at.flag())
	case err != nil:
		return fmt.Errorf("cannot %s: %w", doing, err)
	case file.Problem != "":
		return failure{exitNoCapacity, fmt.Errorf("cannot serve %s on %s: %s; `kith models rm %s%s` deletes its files", file.ID, on, file.Problem, file.ID, at.flag())}
	}
	return a.print(pulledOn{file.ID, at.name, file.Size, watch.offered}, func() {
		a.say("%s is on %s", strong(file.ID), at.where())
		if watch.offered {
			a.say(", which offers it; try it with `kith run %s`", file.ID)
		}
		a.say("\n")
	})
}

// pullWatch follows a pull on another machine.
type pullWatch struct {
	*app
	at      *filesAt
	model   string // as the machine lists the pull
	id      string // of the model, once it is known
	meter   rate
	heard   time.Time // when the machine last answered
	ended   time.Time // when the pull was complete
	offered bool      // the machine offers the model
}

// run returns the model's file once the machine offers it, cannot serve it, or does not offer
// it in time. now is the machine's state at the beginning.
func (w *pullWatch) run(ctx context.Context, now fleet.ModelFiles) (fleet.ModelFile, error) {
	for {
		file, over, err := w.look(ctx, now)
		if over || err != nil {
			return file, err
		}
		for {
			if err := wait(ctx, watchEvery); err != nil {
				return file, err
			}
			if now, _, err = w.at.act(ctx, "see how far it is", fleet.FileAct{Act: fleet.ActList}); err == nil {
				w.heard = time.Now()
				break
			}
			if !w.isLost(err) || time.Since(w.heard) > lostFor {
				return file, lostSight{err}
			}
			w.progress(w.at.where() + " goes on with the pull; waiting for its answer")
		}
	}
}

// lostSight is why a command no longer sees how far a pull is. The pull goes on.
type lostSight struct{ error }

// Unwrap returns the cause.
func (l lostSight) Unwrap() error { return l.error }

// isLost reports whether an error may be over later: the hub cannot be reached or is not
// ready, or the machine is not connected.
func (w *pullWatch) isLost(err error) bool {
	if _, ok := errors.AsType[unreachable](err); ok {
		return true
	}
	refused, ok := errors.AsType[*refusal](err)
	return ok && (refused.status >= http.StatusInternalServerError || refused.status == http.StatusTooManyRequests)
}

// look reads the machine's state. over reports that there is nothing more to wait for.
func (w *pullWatch) look(ctx context.Context, now fleet.ModelFiles) (file fleet.ModelFile, over bool, err error) {
	if i := slices.IndexFunc(now.Pulls, func(p fleet.ModelPull) bool { return p.Model == w.model }); i >= 0 {
		p := now.Pulls[i]
		switch w.id = cmp.Or(p.ID, w.id); p.State {
		case fleet.PullDone:
		case fleet.PullFailed:
			return file, true, errors.New(p.Problem)
		default:
			w.show(p)
			return file, false, nil
		}
	} else if w.ended.IsZero() {
		return file, true, errors.New("it was canceled")
	}
	if w.ended.IsZero() {
		w.ended = time.Now()
		w.progress("waiting for " + w.at.where() + " to offer it")
	}
	file, ok := now.File(w.id)
	switch late := time.Since(w.ended) > offeredWithin; {
	case !ok && late:
		return file, true, errors.New("its files were removed")
	case !ok:
		return file, false, nil
	}
	w.offered = file.Problem == "" && w.isOffered(ctx)
	return file, w.offered || file.Problem != "" || time.Since(w.ended) > offeredWithin, nil
}

// isOffered reports whether the hub lists the model as one of the machine.
func (w *pullWatch) isOffered(ctx context.Context) bool {
	machines, _, _ := fetch(ctx, w.at.client, "list your machines", api.ListMachines.With(api.None{})) // none after an error
	return slices.ContainsFunc(machines.Data, func(m api.Machine) bool {
		return m.Name == w.at.name && slices.ContainsFunc(m.Models, func(o api.MachineModel) bool { return string(o.ID) == w.id })
	})
}

// show shows a pull as `kith pull` shows its own.
func (w *pullWatch) show(p fleet.ModelPull) {
	switch {
	case p.Problem != "":
		w.progress(p.Problem + "; trying again")
	case p.State == fleet.PullWaiting:
		w.progress("waiting for the pulls before it")
	case p.File == "":
		w.progress("looking for " + p.Model)
	default:
		now := pull.Progress{File: p.File, Done: p.Done, Total: p.Total, Verifying: p.Verifying}
		if text, show := w.meter.text(now, time.Now()); show {
			w.progress(text)
		}
	}
}
