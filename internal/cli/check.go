package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/certificate"
	"github.com/kith/kith/internal/host"
)

func (a *app) config() *cobra.Command {
	var hub bool
	check := command("kith config check", func(_ context.Context, args []string) error {
		file := filepath.Join(a.home, "config.toml")
		if len(args) == 1 {
			file = pathHere(args[0])
		} else if hub {
			file = filepath.Join(a.home, "hub.toml")
		}
		return a.checkConfig(file, len(args) == 1, hub || filepath.Base(file) == "hub.toml")
	})
	check.Flags().BoolVar(&hub, "hub", false, "FILE is a hub's, whatever its name")
	return group("kith config", check)
}

// goodConfig returns the message for a valid configuration file, which may be missing.
func goodConfig(file string) string {
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return file + " is not there: every key has its default"
	}
	return file + " is good"
}

// checked is the output of `kith config check --json`.
type checked struct {
	File     string    `json:"file"`
	OK       bool      `json:"ok"`
	Problems []problem `json:"problems"`
	// Accepted are files with secrets that are accepted although their mode gives others
	// access, and why.
	Accepted []acceptedSecret `json:"accepted,omitempty"`
}

type acceptedSecret struct {
	File string `json:"file"`
	Why  string `json:"why"`
}

// acceptedSecrets returns the files with secrets in a configuration that are accepted
// only because of their mount.
func acceptedSecrets(file string, config any) (accepted []acceptedSecret) {
	var files []string
	switch c := config.(type) {
	case *hubFile:
		files = []string{c.Database.URL.file, c.Site.OIDC.ClientSecret.file, c.Site.SMTP.Password.file, pathIn(file, c.TLS.Key)}
	case *daemonFile:
		for _, u := range c.Upstream {
			files = append(files, u.Key.file)
		}
	}
	slices.Sort(files)
	for _, name := range slices.Compact(files) {
		if why := host.WhyAccepted(name); why != "" {
			accepted = append(accepted, acceptedSecret{name, why})
		}
	}
	return accepted
}

func (a *app) checkConfig(file string, named, hub bool) error {
	into := any(defaultDaemonFile(a.home))
	if hub {
		into = defaultHubFile(a.home)
	}
	err := readConfig(file, named, into)
	var refused *configError
	if c, ok := into.(*hubFile); ok && err == nil {
		err = c.checkCertificate(file)
	}
	if err != nil && !errors.As(err, &refused) {
		return err
	}
	report := checked{File: file, OK: err == nil, Problems: []problem{}, Accepted: acceptedSecrets(file, into)}
	if refused != nil {
		report.Problems = refused.Problems
	}
	err = a.print(report, func() {
		for _, p := range report.Problems {
			a.say("%s\n", refused.place(p))
		}
		if refused == nil {
			a.say("%s\n", goodConfig(file))
		}
		for _, s := range report.Accepted {
			a.say("%s: %s\n", s.File, s.Why)
		}
	})
	if refused == nil {
		return err
	}
	at := ""
	if first := report.Problems[0]; first.Line > 0 { // otherwise the problem is not in a particular line
		at = fmt.Sprintf(", the first at line %d, column %d", first.Line, first.Column)
	}
	return fmt.Errorf("cannot use %s: %d to correct in it%s; correct it and check again", file, len(report.Problems), at)
}

// checkCertificate returns an error if a hub could not use the certificate.
func (c *hubFile) checkCertificate(file string) error {
	if c.TLS.Certificate == "" {
		return nil
	}
	if _, err := certificate.Open(pathIn(file, c.TLS.Certificate), pathIn(file, c.TLS.Key), slog.New(slog.DiscardHandler)); err != nil {
		text, _ := os.ReadFile(file) // it was read before
		return &configError{File: file, Problems: placed(text, wrongKey("tls.certificate", "names files that cannot be used: "+err.Error()))}
	}
	return nil
}
