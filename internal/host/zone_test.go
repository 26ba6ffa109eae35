//go:build !windows

package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// zoneRoot returns a folder with these files; a content "-> TARGET" is a link, and
// "zone NAME" a copy of that zone's file.
func zoneRoot(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		assert.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		var err error
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			err = os.Symlink(target, path)
		} else {
			data := []byte(content)
			if zone, ok := strings.CutPrefix(content, "zone "); ok {
				if data, err = os.ReadFile(filepath.Join("testdata", "zoneinfo", zone)); err != nil {
					t.Fatal(err)
				}
			}
			err = os.WriteFile(path, data, 0o600)
		}
		assert.OK(t, err)
	}
	return root
}

// The time zone is found in each place where a Unix system has it, and is never UTC only
// because it is not found.
func TestZone(t *testing.T) {
	t.Parallel()
	list := "# a comment\nDE,DK\t+5230+01322\tEurope/Berlin\tmost\nPT\t+3843-00908\tEurope/Lisbon\nES\t+3553-00519\tAfrica/Ceuta\n"
	tests := []struct {
		name      string
		tz        string
		files     map[string]string
		want, err string
	}{
		{name: "a link", files: map[string]string{zoneFile: "-> /usr/share/zoneinfo/Europe/Lisbon"}, want: "Europe/Lisbon"},
		{name: "a relative link", files: map[string]string{zoneFile: "-> ../usr/share/zoneinfo/America/Argentina/Ushuaia"}, want: "America/Argentina/Ushuaia"},
		{name: "macOS", files: map[string]string{zoneFile: "-> /var/db/timezone/zoneinfo/Europe/Lisbon"}, want: "Europe/Lisbon"},
		{name: "a link to posix", files: map[string]string{zoneFile: "-> /usr/share/zoneinfo/posix/Europe/Lisbon"}, want: "Europe/Lisbon"},
		{name: "a link to a link", files: map[string]string{
			zoneFile: "-> other", "/etc/other": "-> ../zoneinfo/Europe/Lisbon", "/zoneinfo/Europe/Lisbon": "zone Lisbon",
		}, want: "Europe/Lisbon"},
		{name: "a copy", files: map[string]string{zoneFile: "zone Lisbon", zoneListFile: list}, want: "Europe/Lisbon"},
		{name: "a copy whose rules others have now", files: map[string]string{zoneFile: "zone Berlin", zoneListFile: list}, want: "Europe/Berlin"},
		{name: "a copy with its name", files: map[string]string{zoneFile: "zone Lisbon", zoneNameFile: "Europe/Lisbon\n"}, want: "Europe/Lisbon"},
		{name: "a copy of the host's beside the image's name", files: map[string]string{
			zoneFile: "zone Berlin", zoneNameFile: "Etc/UTC\n", zoneListFile: list,
		}, want: "Europe/Berlin"},
		{name: "a copy of UTC", files: map[string]string{zoneFile: "zone UTC"}, want: "UTC"},
		{name: "a copy without a database", files: map[string]string{zoneFile: "zone Lisbon"}, err: "is a copy without a name"},
		{name: "a damaged file", files: map[string]string{zoneFile: "TZif"}, err: "cannot read the time zone in /etc/localtime"},
		{name: "the name alone", files: map[string]string{zoneNameFile: "Europe/Lisbon\n"}, want: "Europe/Lisbon"},
		{name: "an unknown name", files: map[string]string{zoneNameFile: "Mars/Olympus\n"}, err: "TZ is not set"},
		{name: "nothing", err: "TZ is not set, and there is no /etc/localtime"},
		{name: "TZ", tz: "TZ=Europe/Lisbon", files: map[string]string{zoneFile: "-> /usr/share/zoneinfo/Europe/Berlin"}, want: "Europe/Lisbon"},
		{name: "TZ with a colon", tz: "TZ=:Europe/Lisbon", want: "Europe/Lisbon"},
		{name: "TZ, empty", tz: "TZ=", want: "UTC"},
		{name: "TZ is UTC's rule", tz: "TZ=UTC0", want: "UTC"},
		{name: "TZ is a path", tz: "TZ=/usr/share/zoneinfo/Europe/Lisbon", want: "Europe/Lisbon"},
		{name: "TZ is a path with a colon", tz: "TZ=:/etc/localtime", files: map[string]string{zoneFile: "-> /usr/share/zoneinfo/Europe/Lisbon"}, want: "Europe/Lisbon"},
		{name: "TZ is the path of a copy", tz: "TZ=/srv/here", files: map[string]string{"/srv/here": "zone Lisbon", zoneListFile: list}, want: "Europe/Lisbon"},
		{name: "TZ is a path without a file", tz: "TZ=/srv/here", err: "cannot read the time zone"},
		{name: "TZ is a rule", tz: "TZ=CET-1CEST,M3.5.0,M10.5.0/3", err: `TZ is "CET-1CEST,M3.5.0,M10.5.0/3", which is not in the zone database`},
		{name: "TZ is localtime", tz: "TZ=localtime", err: "is not in the zone database"},
		{name: "TZ has a typing error", tz: "TZ=Europe/Lissabon", err: "is not in the zone database"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tz, set := strings.CutPrefix(tt.tz, "TZ=")
			got, err := unixZone(zoneRoot(t, tt.files), tz, set)
			if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %q and %v, want %q and %q", got, err, tt.want, tt.err)
			}
		})
	}
}
