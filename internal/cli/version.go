package cli

import (
	"cmp"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version is the release, set by the linker (make build). After a plain `go build` it is
// empty; the binary then contains the module's version.
var Version string

// build is the output of `kith version --json`.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitzero"` // of the source code
	Modified bool   `json:"modified,omitzero"` // built from uncommitted changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// thisBuild returns what the toolchain recorded in the binary.
func thisBuild() build {
	b := build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version = cmp.Or(Version, info.Main.Version, b.Version)
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			b.Revision = setting.Value
		case "vcs.modified":
			b.Modified = setting.Value == "true"
		}
	}
	return b
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Example: "  kith version\n  kith version --json",
		RunE:    func(*cobra.Command, []string) error { return a.showVersion() },
	}
}

func (a *app) showVersion() error {
	b := thisBuild()
	return a.print(b, func() { a.say("kith %s %s\n", strong(b.Version), faint(b.Go+" "+b.Platform)) })
}
