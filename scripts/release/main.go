// Command release builds the artifacts of a release into a folder, and checks them:
//
//	kith_VERSION_SYSTEM_ARCH.tar.gz (.zip)   the program with the built-in engine
//	kith-slim_VERSION_linux_ARCH.tar.gz      the same without it, a static binary
//	kith_VERSION_ARCH.deb, .rpm              packages for Debian and Fedora
//	kith-hub_VERSION.oci.tar                 the image of the hub, for both processors
//	NAME.cdx.json                            what each build is made of (CycloneDX)
//	install.sh, kith.rb, winget/             the installer, and package managers' manifests
//	SHA256SUMS                               the checksums of all
//
// Two runs on one commit, in any folder and at any time, write equal files.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	source := flag.String("source", "../..", "the repository")
	out := flag.String("out", "../../dist", "the folder of the artifacts, which is replaced")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *source, *out); err != nil {
		fmt.Fprintln(os.Stderr, "release: "+err.Error())
		os.Exit(1)
	}
}

// run builds everything and checks it.
func run(ctx context.Context, source, out string) (err error) {
	r, err := newRelease(ctx, source, out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.work)) }()
	fmt.Printf("kith %s from %s, into %s\n", r.version, r.commit[:12], r.out)
	steps := []step{{"man pages, completions", r.buildDocs}}
	for _, t := range targets {
		steps = append(steps, step{"build " + t.String(), func(ctx context.Context) error { return r.build(ctx, t) }})
	}
	steps = append(steps, step{"licences of what is not ours", r.licenses})
	for _, t := range targets {
		steps = append(steps, step{"archive " + r.archiveName(t), func(context.Context) error { return r.archive(t) }})
	}
	steps = append(steps,
		step{"packages for Debian and Fedora", r.packages},
		step{"image of the hub", r.image},
		step{"installer, manifests, checksums", r.finish},
		step{"check every artifact", r.check})
	for i, s := range steps {
		if err := s.run(ctx, os.Stdout, fmt.Sprintf("[%d/%d] ", i+1, len(steps))); err != nil {
			return err
		}
	}
	return nil
}

// release is one release of one commit.
type release struct {
	source, out string
	work        string // a folder of this run's own, removed at the end
	version     string // without "v"
	commit      string
	date        time.Time // of the commit, and so of all files
}

// newRelease reads the commit and the version, and replaces the output folder.
func newRelease(ctx context.Context, source, out string) (*release, error) {
	r := &release{}
	var err error
	if r.source, err = filepath.Abs(source); err != nil {
		return nil, err
	}
	if r.out, err = filepath.Abs(out); err != nil {
		return nil, err
	}
	if err := r.describe(ctx); err != nil {
		return nil, err
	}
	// A folder with other files is not the output of an earlier run.
	if entries, err := os.ReadDir(r.out); err == nil && len(entries) > 0 {
		if _, err := os.Stat(filepath.Join(r.out, sumsFile)); err != nil && !slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), "kith") }) {
			return nil, fmt.Errorf("cannot replace %s: it holds no release; name another folder with -out", r.out)
		}
	}
	if err := os.RemoveAll(r.out); err != nil {
		return nil, fmt.Errorf("cannot replace the output: %w", err)
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the output's folder: %w", err)
	}
	r.work, err = os.MkdirTemp("", "kith-release-")
	return r, err
}

// describe reads the commit, its date and the version. A commit without a tag, or with
// changes that are not committed, has a version that comes before the one in VERSION.
func (r *release) describe(ctx context.Context) error {
	var failed error // the first
	git := func(doing string, args ...string) string {
		out, err := exec.CommandContext(ctx, "git", append([]string{"-C", r.source}, args...)...).Output()
		if err != nil && failed == nil {
			failed = fmt.Errorf("cannot %s of %s: %w; a release is built from a git clone", doing, r.source, err)
		}
		return strings.TrimSpace(string(out))
	}
	commit := git("read the commit", "rev-parse", "HEAD")
	date := git("read the date of the commit", "show", "-s", "--format=%cI", "HEAD")
	changed := git("compare the files with the commit", "status", "--porcelain")
	if failed != nil {
		return failed
	}
	at, err := time.Parse(time.RFC3339, date)
	if err != nil {
		return fmt.Errorf("cannot read the date of the commit: %w", err)
	}
	next, err := os.ReadFile(filepath.Join(r.source, "VERSION"))
	if err != nil {
		return fmt.Errorf("cannot read the version of the next release: %w", err)
	}
	dev := strings.TrimSpace(string(next)) + "-dev.g" + commit[:12]
	tag := git("find the tag", "describe", "--tags", "--exact-match", "--match", "v[0-9]*")
	r.commit, r.date = commit, at.UTC()
	switch {
	case changed != "":
		r.version = dev + ".modified"
	case failed != nil: // it has no tag
		r.version = dev
	default:
		r.version = strings.TrimPrefix(tag, "v")
	}
	return nil
}

// step is one part of the work.
type step struct {
	name string
	do   func(context.Context) error
}

// run does the step. It writes its name, a line every 10 s that it is still at work, and
// how long it took.
func (s step) run(ctx context.Context, w io.Writer, prefix string) error {
	begin := time.Now()
	fmt.Fprintf(w, "%s%s\n", prefix, s.name)
	done := make(chan error, 1)
	go func() { done <- s.do(ctx) }()
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			if took := time.Since(begin); took > 2*time.Second {
				fmt.Fprintf(w, "%sdone in %d s\n", prefix, int(took.Seconds()))
			}
			return nil
		case <-tick.C:
			fmt.Fprintf(w, "%s%s: %d s so far\n", prefix, s.name, int(time.Since(begin).Seconds()))
		}
	}
}
