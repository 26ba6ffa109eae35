package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/llama"
	"github.com/kith/kith/internal/pull"
)

// gpuLibraries returns the GPU libraries of the built-in engine. Tests replace it.
var gpuLibraries = llama.GPULibraries

// defaultRegistry is the npm registry, the source of the built-in engine's libraries. As
// for npm, the variable npm_config_registry overrides it.
const defaultRegistry = "https://registry.npmjs.org"

// engineFolder returns the folder for the built-in engine's libraries.
func (c *daemonFile) engineFolder() string { return filepath.Join(c.Daemon.Data, "engine") }

// gpuState is a GPU library in the output of `kith engine --json`.
type gpuState struct {
	Name  string `json:"name"`
	Cards string `json:"for"`   // the graphics cards that it supports
	Needs string `json:"needs"` // what it requires on the computer
	Size  int64  `json:"size"`  // download size in bytes
	Added bool   `json:"added"`
	Used  bool   `json:"used"`          // by the running daemon
	On    string `json:"on,omitempty"`  // the graphics cards in use
	Why   string `json:"why,omitempty"` // why it is not in use
}

func (a *app) engineCommand() *cobra.Command {
	names := []source{func(context.Context) []string {
		return convert(gpuLibraries(), func(g llama.GPULibrary) string { return g.Name + "\tfor graphics cards of " + g.Cards })
	}}
	return withCommands(command("kith engine", a.listGPULibraries),
		a.completing(names, command("kith engine add", a.addGPULibrary)),
		a.completing(names, command("kith engine remove", a.removeGPULibrary)))
}

func (a *app) listGPULibraries(ctx context.Context, _ []string) error {
	config, now, running, err := a.daemonStatus(ctx, "ask what the engine computes with")
	if err != nil {
		return err
	}
	used := graphicsOf(now)
	list := convert(gpuLibraries(), func(g llama.GPULibrary) gpuState {
		s := gpuState{Name: g.Name, Cards: g.Cards, Needs: g.Needs, Size: g.Size, Added: g.Installed(config.engineFolder())}
		if used != nil {
			s.Used, s.Why = used.Library == g.Name, used.Unused[g.Name]
		}
		if s.Used {
			s.On = strings.Join(used.Cards, ", ")
		}
		return s
	})
	return a.print(list, func() {
		if len(list) == 0 {
			a.say("%s\n", noGPULibraries())
			return
		}
		a.table("NAME CARDS SIZE STATE", convert(list, func(s gpuState) []string {
			state := "not added"
			switch {
			case s.Used:
				state = "in use: " + s.On
			case s.Added && s.Why != "":
				state = "not used: " + s.Why
			case s.Added && !running:
				state = "added; used once `kith serve` runs"
			case s.Added:
				state = "added; used after the daemon's next start, with the built-in engine"
			}
			return []string{s.Name, s.Cards, pull.Bytes(s.Size), state}
		}))
	})
}

// noGPULibraries explains why the list of libraries is empty.
func noGPULibraries() string {
	if llama.Available() != nil {
		return "this kith has no built-in engine; a llama-server on the PATH brings its own GPU support"
	}
	return "there is no GPU library for this system; a llama-server on the PATH brings its own"
}

// graphicsOf returns what the daemon's built-in engine computes with, or nil if it is not
// running.
func graphicsOf(now daemon.Status) *engine.Graphics {
	for _, e := range now.Engines {
		if e.Graphics != nil {
			return e.Graphics
		}
	}
	return nil
}

// gpuLibrary returns the library with the given name.
func gpuLibrary(doing, name string) (llama.GPULibrary, error) {
	all := gpuLibraries()
	if i := slices.IndexFunc(all, func(g llama.GPULibrary) bool { return g.Name == name }); i >= 0 {
		return all[i], nil
	}
	if len(all) == 0 {
		return llama.GPULibrary{}, fmt.Errorf("%s: %s", doing, noGPULibraries())
	}
	names := convert(all, func(g llama.GPULibrary) string { return g.Name })
	return llama.GPULibrary{}, wrongUse("%s: there is %s", doing, strings.Join(names, " and "))
}

// addGPULibrary downloads a library to the folder that the daemon loads libraries from
// when it starts.
func (a *app) addGPULibrary(ctx context.Context, args []string) error {
	name := args[0]
	doing := "cannot add " + name
	library, err := gpuLibrary(doing, name)
	if err != nil {
		return err
	}
	config, err := loadLocalFile(a.home)
	if err != nil {
		return err
	}
	folder := config.engineFolder()
	base := strings.TrimSuffix(defaultRegistry, "/")
	if named := os.Getenv("npm_config_registry"); named != "" {
		base = strings.TrimSuffix(named, "/")
	}
	short := filepath.Base(library.Package)
	archive := short + "-" + library.Version + ".tgz"
	source := &pull.Source{Client: pull.NewClient()}
	err = a.fetchModel(ctx, source, &pull.Model{ID: name, Files: []pull.File{{
		Name: archive, URL: base + "/" + library.Package + "/-/" + archive, Size: library.Size, SHA256: library.SHA256,
	}}}, folder, doing)
	if err != nil {
		return err
	}
	a.progress("unpacking it")
	packed := filepath.Join(folder, archive)
	if err := library.Install(folder, packed); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if err := os.Remove(packed); err != nil {
		return fmt.Errorf("cannot remove the package that was unpacked: %w", err)
	}
	_, _, running, _ := a.daemonStatus(ctx, "ask whether it runs")
	a.progress("")
	return a.print(map[string]any{"name": name, "added": true, "size": library.Unpacked}, func() {
		a.say("added %s; it needs %s\n", strong(name), library.Needs)
		if running {
			a.say("end the daemon and start it again to use it; check with `kith engine`\n")
		} else {
			a.say("`kith serve` uses it; check with `kith engine`\n")
		}
	})
}

func (a *app) removeGPULibrary(ctx context.Context, args []string) error {
	name := args[0]
	doing := "cannot remove " + name
	library, err := gpuLibrary(doing, name)
	if err != nil {
		return err
	}
	config, now, _, err := a.daemonStatus(ctx, "ask whether it is used")
	if err != nil {
		return err
	}
	if err := library.Remove(config.engineFolder()); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: it was not added; `kith engine` lists what is there", doing)
	} else if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	used := graphicsOf(now)
	inUse := used != nil && used.Library == name
	return a.print(map[string]any{"name": name, "removed": true}, func() {
		a.say("removed %s\n", strong(name))
		if inUse {
			a.say("the daemon goes on with it until it is started again\n")
		}
	})
}

// graphicsText describes what the built-in engine computes with, for `kith status`.
func graphicsText(g *engine.Graphics) (text string) {
	if g == nil {
		return ""
	}
	if g.Library != "" {
		text = fmt.Sprintf("; computes with %s on %s", g.Library, strings.Join(g.Cards, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(g.Unused)) {
		text += fmt.Sprintf("; %s is not used: %s", name, g.Unused[name])
	}
	return text
}

// graphics checks that each installed GPU library is in use. It is fine if one is not
// used because another one is.
func (d *doctor) graphics(g *engine.Graphics) {
	if g == nil {
		return
	}
	if g.Library != "" {
		d.ok("graphics", "%s on %s", g.Library, strings.Join(g.Cards, ", "))
		return
	}
	var reasons []string
	names := slices.Sorted(maps.Keys(g.Unused))
	for _, name := range names {
		reasons = append(reasons, fmt.Sprintf("%s is not used: %s", name, g.Unused[name]))
	}
	if len(names) > 0 {
		d.fail("graphics", "fix that and start the daemon again, or `kith engine remove "+names[0]+"`",
			"the processor computes, because %s", strings.Join(reasons, "; and "))
	}
}
