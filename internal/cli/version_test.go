package cli

import (
	"runtime/debug"
	"testing"

	module "github.com/kith/kith"
)

// A build of no release has the version before the next one, with its commit.
func TestBuildVersion(t *testing.T) {
	commit := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef0123"}
	changed := debug.BuildSetting{Key: "vcs.modified", Value: "true"}
	for _, test := range []struct {
		linked, main string
		settings     []debug.BuildSetting
		want         string
	}{
		{"1.2.3", "v1.2.3", nil, "1.2.3"},
		{"", "v1.2.3", []debug.BuildSetting{commit}, "1.2.3"}, // go install, or a checkout of the tag
		{"", "(devel)", nil, module.Version() + "-dev"},
		{"", "", nil, module.Version() + "-dev"},
		{"", "v0.0.0-20261127160559-0123456789ab", []debug.BuildSetting{commit}, module.Version() + "-dev.g0123456789ab"},
		{"", "v1.2.3+dirty", []debug.BuildSetting{commit, changed}, module.Version() + "-dev.g0123456789ab.modified"},
	} {
		if got := buildOf(test.linked, &debug.BuildInfo{Main: debug.Module{Version: test.main}, Settings: test.settings}).Version; got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
}
