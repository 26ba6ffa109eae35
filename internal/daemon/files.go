package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/kith/kith/internal/daemon/private"
	"github.com/kith/kith/internal/tunnel"
)

// The daemon's files in its home (KITH_HOME, default ~/.kith).
const (
	credentialFile = "credential"  // the machine's secret, 0600
	stateFile      = "state.json"  // the owner's changes at run time, 0600
	socketFile     = "daemon.sock" // the control API and the local surface, 0600
)

// Credential is what `kith login` saves in KITH_HOME: the hub, this machine's identity
// there and its secret. When printed or logged, it omits Secret.
type Credential struct {
	Hub     string `json:"hub"`     // the hub's base URL, without /v1
	Machine string `json:"machine"` // the machine's id on that hub
	Member  string `json:"member"`  // its owner's name there
	Region  string `json:"region"`
	Secret  string `json:"secret"` // kithm_…
}

// String returns the credential without its secret.
func (c Credential) String() string {
	return fmt.Sprintf("machine %s of %s on %s", c.Machine, c.Member, c.Hub)
}

// GoString returns String, so that %#v does not print the secret either.
func (c Credential) GoString() string { return c.String() }

// LogValue returns String, for slog.
func (c Credential) LogValue() slog.Value { return slog.StringValue(c.String()) }

// LoadCredential reads the credential in home. The error is fs.ErrNotExist if the machine
// is not signed in. It refuses a file that other users can read.
func LoadCredential(home string) (Credential, error) {
	var c Credential
	path := filepath.Join(home, credentialFile)
	if err := private.Read(path, &c); errors.Is(err, fs.ErrNotExist) {
		return Credential{}, err
	} else if err != nil {
		return Credential{}, fmt.Errorf("cannot use this machine's credential: %w; or run `kith login` again", err)
	}
	if c.Secret == "" {
		return Credential{}, fmt.Errorf("cannot use %s: it does not contain a secret; run `kith login` again", path)
	}
	if err := tunnel.CheckHub(c.Hub); err != nil {
		return Credential{}, fmt.Errorf("cannot use %s: %w; run `kith login` again", path, err)
	}
	c.Hub = strings.TrimSuffix(c.Hub, "/")
	return c, nil
}

// SaveCredential saves c in home, atomically, in a file that only its owner can read.
func SaveCredential(home string, c Credential) error {
	if err := os.MkdirAll(home, 0o700); err != nil {
		return fmt.Errorf("cannot keep the credential: %w", err)
	}
	return private.Write(filepath.Join(home, credentialFile), c)
}

// RemoveCredential removes the credential in home. The error is fs.ErrNotExist if there
// is none.
func RemoveCredential(home string) error {
	return os.Remove(filepath.Join(home, credentialFile))
}
