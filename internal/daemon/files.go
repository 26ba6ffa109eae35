package daemon

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/kith/kith/internal/host"
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
	if err := ReadPrivate(path, &c); errors.Is(err, fs.ErrNotExist) {
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
	return WritePrivate(filepath.Join(home, credentialFile), c)
}

// RemoveCredential removes the credential in home. The error is fs.ErrNotExist if there
// is none.
func RemoveCredential(home string) error {
	return os.Remove(filepath.Join(home, credentialFile))
}

// ReadPrivate decodes the JSON file at path into v. It refuses a file that other users
// can read or change.
func ReadPrivate(path string, v any) error {
	if err := host.CheckSecretFile(path); errors.Is(err, fs.ErrNotExist) {
		return err
	} else if err != nil {
		return fmt.Errorf("cannot use %s: %w", path, err)
	}
	text, err := host.ReadText(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("cannot read %s: %w", path, err)
	}
	return nil
}

// WritePrivate writes v as JSON to path with mode 0600. It syncs and renames a temporary
// file, so that after a crash the file has either its old or its new content.
func WritePrivate(path string, v any) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot write %s: %w", path, err)
		}
	}()
	data, err := json.Marshal(v, jsontext.WithIndent("  "))
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // has mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
