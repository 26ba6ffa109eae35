package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/llama"
	"github.com/kith/kith/internal/pull"
)

// offeredWithin is how long `kith pull` waits for the daemon to offer a new model after
// the start of its engine.
const offeredWithin = 30 * time.Second

// pulled is the output of `kith pull --json`.
type pulled struct {
	ID     string   `json:"id"`
	From   string   `json:"from"`
	Files  []string `json:"files"`
	Size   int64    `json:"size"`    // bytes
	Served bool     `json:"offered"` // the daemon offers it
}

func (a *app) pull() *cobra.Command {
	var on string
	var cancel bool
	names := func(context.Context) []string {
		return convert(pull.List(), func(l pull.Listed) string { return l.Name + "\t" + l.About })
	}
	cmd := a.completing([]source{names}, command("kith pull", func(ctx context.Context, args []string) error {
		switch {
		case cancel && len(args) == 0:
			return wrongUse("cannot cancel a pull: name its model, as `kith models` lists it")
		case cancel:
			return a.cancelPull(ctx, args[0], on)
		case on == "" && len(args) == 0:
			return a.listPullable(ctx)
		case on == "":
			return a.pullModel(ctx, args[0])
		case len(args) == 0:
			return a.listPullableOn(ctx, on)
		}
		return a.pullOn(ctx, args[0], on)
	}))
	a.onFlag(cmd, &on)
	cmd.Flags().BoolVar(&cancel, "cancel", false, "end a pull that a machine does by itself, and delete what it fetched")
	return cmd
}

// pullable is a model in the list that `kith pull --json` prints.
type pullable struct {
	pull.Listed
	Memory uint64 `json:"memory"` // required memory in bytes
	Fits   bool   `json:"fits"`   // in this machine's memory
	// Context is the context length in tokens of each of the Slots that the built-in engine
	// gives a chat model if all memory of this machine is free.
	Context int `json:"context,omitzero"`
	Slots   int `json:"slots,omitzero"`
}

// newPullable returns a listed model on a machine with so many bytes of memory; 0 means
// unknown.
func newPullable(l pull.Listed, memory uint64) pullable {
	needs := pull.Memory(l.Size)
	p := pullable{Listed: l, Memory: needs, Fits: memory == 0 || needs <= memory}
	if p.Fits && l.Trained > 0 {
		p.Slots, p.Context = llama.Footprint{
			Weights: uint64(l.Size), Trained: l.Trained,
			Layers: l.Attention.Layers, KVHeads: l.Attention.KVHeads, KeyLength: l.Attention.KeyLength,
		}.Context(memory)
	}
	return p
}

// listPullable prints the list of models, which of them fit this machine, and what they can
// do on it.
func (a *app) listPullable(ctx context.Context) error {
	largest := largestMemory(ctx)
	list := convert(pull.List(), func(l pull.Listed) pullable { return newPullable(l, largest) })
	return a.print(list, func() {
		a.table(pullableHeadings, convert(list, func(l pullable) []string {
			return pullableRow(l.listed())
		}))
		if largest > 0 {
			a.say("\n")
			a.note("FITS, CONTEXT: in this machine's " + pull.Bytes(int64(largest)) + " of memory. TOOLS default: kith describes them to the model. Any other model: kith pull hf.co/ORG/REPO:QUANT")
		}
	})
}

// number formats a number of tokens or machines; 0 is unknown.
func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// listed returns the model as it is listed for another machine, too.
func (l *pullable) listed() fleet.ListedModel {
	return fleet.ListedModel{
		Name: l.Name, Size: l.Size, Memory: int64(l.Memory), Fits: l.Fits, Tools: l.Tools, Thinking: l.Thinking, Context: l.Context,
		Licence: l.Licence, About: l.About,
	}
}

const pullableHeadings = "MODEL SIZE FITS TOOLS THINKING CONTEXT LICENCE GOOD-AT"

func pullableRow(l fleet.ListedModel) []string {
	fits, thinking := "yes", "-"
	if !l.Fits {
		fits = "needs " + pull.Bytes(l.Memory)
	}
	if l.Thinking {
		thinking = "yes"
	}
	return []string{l.Name, pull.Bytes(l.Size), fits, cmp.Or(l.Tools, "-"), thinking, number(l.Context), l.Licence, l.About}
}

// largestMemory returns how many bytes of this machine's main memory or of its graphics
// cards a model can use; 0: unknown.
func largestMemory(ctx context.Context) uint64 {
	computer := thisComputer()
	cards := uint64(0)
	for _, card := range computer.GPUs(ctx) {
		cards += card.Total
	}
	return max(computer.RAM(ctx).Total/10*9, cards)
}

// pullModel downloads a model and, if the daemon is running, waits until it offers the
// model.
func (a *app) pullModel(ctx context.Context, reference string) error {
	doing := "cannot fetch " + reference
	folder, err := a.modelsFolder()
	if err != nil {
		return err
	}
	source := localSource(ctx)
	a.progress("looking for " + reference)
	model, err := source.Resolve(ctx, reference)
	if errors.Is(err, pull.ErrUnknown) {
		like := ""
		if near := likeListed(reference); near != "" {
			like = fmt.Sprintf(", did you mean %q?", near)
		}
		return wrongUse("%s: %w%s; `kith pull` lists names, and hf.co/ORG/REPO:QUANT names a model of the model hub", doing, err, like)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if err := a.fetchModel(ctx, source, model, folder, doing); errors.Is(err, pull.ErrNoSpace) {
		return fmt.Errorf("%w, or set [engine] models to a folder on another disk", err)
	} else if err != nil {
		return err
	}
	done := pulled{ID: model.ID, From: model.Origin, Files: []string{}, Size: model.Size()}
	for _, f := range model.Files {
		done.Files = append(done.Files, filepath.Join(folder, filepath.FromSlash(f.Name)))
	}
	var running bool
	var problem string
	if source.Images || llama.Available() == nil {
		a.progress("waiting for the daemon to offer it")
		running, problem = a.awaitOffered(ctx, model.ID, offeredWithin)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	done.Served = running && problem == ""
	a.progress("")
	if err := a.print(done, func() { a.showPulled(done, model, source.Images, running) }); err != nil || problem == "" {
		return err
	}
	return failure{exitNoCapacity, fmt.Errorf("cannot serve %s on this machine: %s", model.ID, problem)}
}

// fetchModel downloads the files of a model and shows the progress.
func (a *app) fetchModel(ctx context.Context, source *pull.Source, model *pull.Model, folder, doing string) error {
	meter := rate{began: time.Now()}
	err := source.Fetch(ctx, model, folder, func(p pull.Progress) {
		if text, now := meter.text(p, time.Now()); now {
			a.progress(text)
		}
	})
	if err != nil && ctx.Err() != nil {
		return errors.New("cannot finish: interrupted; what was fetched is kept, and the same command resumes the download")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

func (a *app) showPulled(done pulled, model *pull.Model, server, running bool) {
	a.say("%s  %s\n", strong(done.ID), faint(done.Files[0]))
	switch {
	case done.Served:
		a.say("the daemon offers it; try it with `kith run %s`\n", done.ID)
	case !server && llama.Available() != nil:
		a.say("this kith has no engine: install llama.cpp, so that llama-server is on the PATH, and start `kith serve`\n")
	case !running:
		a.say("start the daemon with `kith serve`, and it offers this model\n")
	}
	if model.TakesImages && !server {
		a.note("It takes images with llama.cpp's llama-server on the PATH: install that and pull the model again.")
	}
}

// modelsFolder returns the first folder in [engine] models.
func (a *app) modelsFolder() (string, error) {
	config, err := loadLocalFile(a.home)
	if err != nil {
		return "", err
	}
	if folder := config.pullFolder(); folder != "" {
		return folder, nil
	}
	return "", errors.New("cannot fetch a model: [engine] models names files only; add a folder there")
}

// awaitOffered waits until the daemon offers the model. If the daemon cannot serve it or
// does not offer it in time, problem is the cause and what to do. The start of the
// built-in engine does not count, because the engine limits that itself. running is false
// if no daemon is running.
func (a *app) awaitOffered(ctx context.Context, id string, within time.Duration) (running bool, problem string) {
	late := time.Now().Add(within)
	for {
		_, now, running, err := a.daemonStatus(ctx, "ask for the models")
		if !running || err != nil || slices.Contains(now.Models, fleet.ModelID(id)) {
			return running, ""
		}
		for _, e := range now.Engines {
			if e.Why != "" && strings.HasSuffix(e.Name, " for "+id) {
				return true, fmt.Sprintf("%s; `kith models rm %s` deletes its files", e.Why, id)
			}
			if isStarting(e) && e.Why == llama.ErrStarting.Error() {
				late = time.Now().Add(within)
			}
		}
		if time.Now().After(late) {
			return true, "the daemon does not offer it yet; `kith status` says more"
		}
		if wait(ctx, 200*time.Millisecond) != nil {
			return true, ""
		}
	}
}

// rate measures a download to estimate how long it takes.
type rate struct {
	began, said time.Time
	from        int64 // bytes at began, or at the end of verifying
	fetching    bool
}

// text returns a text about the progress, and whether it is time to show it.
func (r *rate) text(p pull.Progress, now time.Time) (text string, show bool) {
	if r.fetching != !p.Verifying {
		r.began, r.from, r.fetching = now, p.Done, !p.Verifying
	}
	if now.Sub(r.said) < 200*time.Millisecond && p.Waiting == nil {
		return "", false
	}
	r.said = now
	if p.Waiting != nil {
		return fmt.Sprintf("%v; trying again", p.Waiting), true
	}
	doing := "fetching " + p.File
	if p.Verifying {
		doing = "verifying " + p.File
	}
	done := pull.Bytes(p.Done)
	if p.Total > 0 {
		done = fmt.Sprintf("%d %%, %s of %s", p.Done*100/p.Total, done, pull.Bytes(p.Total))
	}
	seconds := now.Sub(r.began).Seconds()
	if seconds < 1 || p.Done <= r.from {
		return doing + ": " + done, true
	}
	speed := float64(p.Done-r.from) / seconds
	text = fmt.Sprintf("%s: %s, %s/s", doing, done, pull.Bytes(int64(speed)))
	if left := time.Duration(float64(p.Total-p.Done) / speed * float64(time.Second)); p.Total > 0 {
		text += ", " + left.Round(time.Second).String() + " left"
	}
	return text, true
}

func (a *app) removeModel() *cobra.Command {
	var on string
	cmd := a.completing(a.modelFilesOn(&on), command("kith models rm", func(ctx context.Context, args []string) error {
		if on != "" {
			return a.removeOn(ctx, args[0], on)
		}
		config, err := loadLocalFile(a.home)
		if err != nil {
			return err
		}
		files, err := modelFiles(config.Engine.Models)
		if err != nil {
			return err
		}
		at := slices.IndexFunc(files, func(f modelFile) bool { return f.ID == args[0] })
		if at < 0 {
			return fmt.Errorf("cannot delete %s: no file of that model is in the folders of [engine] models; `kith models` lists what this machine serves", args[0])
		}
		freed, err := config.deleteModel(files[at])
		if err != nil {
			return fmt.Errorf("cannot delete %s: %w", args[0], err)
		}
		return a.print(map[string]any{"id": args[0], "freed": freed}, func() { a.say("deleted %s; %s are free again\n", strong(args[0]), pull.Bytes(freed)) })
	}))
	a.onFlag(cmd, &on)
	return cmd
}

// ownModelFiles returns the models in this machine's files.
func (a *app) ownModelFiles() ([]modelFile, error) {
	config, err := loadLocalFile(a.home)
	if err != nil {
		return nil, err
	}
	return modelFiles(config.Engine.Models)
}

// deleteModel deletes the files of a model, and its folder if that is then empty. It
// returns the number of freed bytes. A file that the configuration names stays: without it the
// daemon would not start.
func (c *daemonFile) deleteModel(m modelFile) (freed int64, err error) {
	if slices.Contains(c.Engine.Models, m.Path) {
		return 0, errors.New("[engine] models of config.toml names its file: remove it there first, and restart the daemon")
	}
	folder := filepath.Dir(m.Path)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return 0, err
	}
	others := false // another model uses the same projector
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		switch info, err := os.Stat(path); {
		case err != nil || !strings.HasSuffix(e.Name(), ".gguf"):
		case pull.ModelID(e.Name()) == m.ID:
			if err := os.Remove(path); err != nil {
				return freed, err
			}
			freed += info.Size()
		case path != m.Projector:
			others = true
		}
	}
	if m.Projector != "" && !others {
		if info, err := os.Stat(m.Projector); err == nil {
			freed += info.Size()
		}
		if err := os.Remove(m.Projector); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return freed, err
		}
		_ = os.Remove(folder) // fails if there are other files
	}
	return freed, pull.Forget(m.Path)
}
