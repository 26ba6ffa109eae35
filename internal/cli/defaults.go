package cli

import (
	"cmp"
	"os"
	"path/filepath"
	"time"

	"github.com/kith/kith/internal/daemon"
)

// The default addresses, and whether a daemon looks for engines on their usual ports.
// Only tests of this package change them, so that commands under test do not reach a hub,
// daemon or engine of the computer's owner.
var (
	defaultHub       = "127.0.0.1:8700"
	defaultLocal     = "127.0.0.1:8701"
	defaultAdmin     = "127.0.0.1:8702"
	defaultDiscovery = true
)

// loadDaemonFile reads config.toml over its defaults. If file is empty it is the one in
// home, which may be missing. If onlySecrets is true of the error, the rest was read.
func loadDaemonFile(home, file string) (*daemonFile, error) {
	c, named := defaultDaemonFile(home), file != ""
	file = cmp.Or(file, filepath.Join(home, "config.toml"))
	c.setPowerDefaults(thisComputer())
	err := readConfig(file, named, c)
	if err != nil && !onlySecrets(err) {
		return nil, err
	}
	c.Daemon.Data = pathIn(file, c.Daemon.Data)
	for i, path := range c.Engine.Models {
		c.Engine.Models[i] = pathIn(file, path)
	}
	c.Share.Timezone.find()
	return c, err
}

// loadLocalFile reads config.toml for a command other than the daemon. It does not use
// the secrets, which may only be in the service's environment.
func loadLocalFile(home string) (*daemonFile, error) {
	c, err := loadDaemonFile(home, "")
	if onlySecrets(err) {
		err = nil
	}
	return c, err
}

func defaultDaemonFile(home string) *daemonFile {
	c := new(daemonFile)
	c.Daemon.Listen.Text = defaultLocal
	c.Daemon.Data = home
	c.RateLimit.Enabled, c.RateLimit.RPS, c.RateLimit.Burst = true, 100, 200
	c.Engine.Builtin = true
	c.Engine.IdleUnload.Duration = 10 * time.Minute
	c.Engine.Models = []string{filepath.Join(home, "models")}
	c.Discovery.Enabled = defaultDiscovery
	c.Audio.MaxUpload.Bytes = daemon.DefaultMaxUpload
	c.Share.Enabled = true
	return c
}

// loadHubFile reads hub.toml over its defaults. If file is empty it is the one in home,
// which may be missing. If onlySecrets is true of the error, the rest was read.
func loadHubFile(home, file string) (*hubFile, error) {
	c, named := defaultHubFile(home), file != ""
	file = cmp.Or(file, filepath.Join(home, "hub.toml"))
	err := readConfig(file, named, c)
	if err != nil && !onlySecrets(err) {
		return nil, err
	}
	c.Hub.Data = pathIn(file, c.Hub.Data)
	if c.Backup.Folder != "" {
		c.Backup.Folder = pathIn(file, c.Backup.Folder)
	}
	if c.TLS.Certificate != "" {
		c.TLS.Certificate = pathIn(file, c.TLS.Certificate)
		c.TLS.Key = pathIn(file, c.TLS.Key)
	}
	return c, err
}

func defaultHubFile(home string) *hubFile {
	c := new(hubFile)
	c.Hub.Listen.Text = defaultHub
	c.Hub.Region.Text = "local"
	host, _ := os.Hostname() // on failure the name is that of an unknown host
	c.Hub.Node.Text = cmp.Or(validNode(host), "hub")
	c.Hub.Data = filepath.Join(home, "hub")
	c.Hub.Drain.Duration = 30 * time.Minute
	c.Backup.Keep = 7
	c.Limits.Body.Bytes = 32 << 20
	c.Limits.Upload.Bytes = 25 << 20
	c.Limits.Member.Bytes = 256 << 20
	c.Limits.Spool.Bytes = diskLimit
	c.Limits.Running, c.Limits.Waiting, c.Limits.Machines = 64, 256, 1000
	c.Limits.Wait.Duration = 60 * time.Second
	c.Limits.WaitStream.Duration = 180 * time.Second
	c.Limits.FirstByte.Duration = 10 * time.Minute
	c.Limits.Idle.Duration = 2 * time.Minute
	c.Limits.Total.Duration = 30 * time.Minute
	c.Responses.Keep.Duration = 24 * time.Hour
	c.RateLimit.RPS, c.RateLimit.Burst, c.RateLimit.Connections = 50, 100, 200
	c.Site.SignUp.Text = "invite"
	c.Log.Level.Text, c.Log.Format.Text = "info", "text"
	return c
}
