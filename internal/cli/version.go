package cli

import (
	"context"
	"regexp"
	"runtime"
	"runtime/debug"

	module "github.com/kith/kith"
)

// Version is the version that scripts/release and the image's build set by the linker.
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
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return buildOf(Version, info)
}

// release is the module's version of a commit with a release's tag.
var release = regexp.MustCompile(`^v(\d+\.\d+\.\d+)$`)

// buildOf returns the build of a binary in which the linker set that version. One that is
// of no release has the version before the next one, as scripts/release names it.
func buildOf(linked string, info *debug.BuildInfo) build {
	b := build{Version: linked, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			b.Revision = setting.Value
		case "vcs.modified":
			b.Modified = setting.Value == "true"
		}
	}
	if m := release.FindStringSubmatch(info.Main.Version); b.Version == "" && m != nil {
		b.Version = m[1]
	} else if b.Version == "" {
		b.Version = module.Version() + "-dev"
		if b.Revision != "" {
			b.Version += ".g" + b.Revision[:min(len(b.Revision), 12)]
		}
		if b.Modified {
			b.Version += ".modified"
		}
	}
	return b
}

func (a *app) showVersion(context.Context, []string) error {
	b := thisBuild()
	return a.print(b, func() { a.say("kith %s %s\n", strong(b.Version), faint(b.Go+" "+b.Platform)) })
}
