package cli

import (
	"cmp"
	"os"
	"path/filepath"
	"time"

	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/fleet"
)

// daemonFile is ~/.kith/config.toml: every key of `kith serve`, with its meaning and
// default. A missing file, section or key has its default.
type daemonFile struct {
	Daemon struct {
		// Listen is the address of the local surface, a literal loopback address; default
		// "127.0.0.1:8701".
		Listen loopback `toml:"listen"`
		// Data is the folder for the daemon's own state; default KITH_HOME.
		Data string `toml:"data"`
	} `toml:"daemon"`
	Hub struct {
		// URL is the hub for `kith login` without --hub; default none.
		URL web `toml:"url"`
		// Reach restricts what calls made on this machine can reach through the hub: "all",
		// the default, "shared" (your machines and those shared with you) or "own". The
		// header X-Kith-Reach restricts a single call.
		Reach reachWord `toml:"reach"`
		// Remote lets you manage this machine's model files from elsewhere, on the site and
		// with `--on` from your other machines: list, pull, remove, load and unload them;
		// default true. No key and no other member can do that.
		Remote bool `toml:"remote"`
	} `toml:"hub"`
	// RateLimit limits all requests to the local surface together. It absorbs spikes and
	// is not a quota.
	RateLimit struct {
		// Enabled turns the limit on; default true.
		Enabled bool `toml:"enabled"`
		// RPS is requests per second; default 100.
		RPS uint32 `toml:"rps"`
		// Burst is how many may arrive at once; default 200.
		Burst uint32 `toml:"burst"`
	} `toml:"ratelimit"`
	Engine struct {
		// Builtin runs the engine that comes with kith; default true.
		Builtin bool `toml:"builtin"`
		// Models are GGUF files, or folders with such files, to offer under their file
		// names; default ["~/.kith/models"]. Folders are watched, including their
		// subfolders. The files run in a llama-server if there is one on this machine's
		// PATH, otherwise in the built-in engine.
		Models []string `toml:"models"`
		// Slots is the number of concurrent calls for each model; 0, the default, is up
		// to 4, as many as fit into the memory.
		Slots uint16 `toml:"slots"`
		// Context is the context length of each slot in tokens; 0, the default, is up to
		// 32768, as many as fit into the memory. A model with a shorter context uses its own.
		Context uint32 `toml:"context"`
		// IdleUnload is how long after its last call a model is unloaded from memory; "0s"
		// is never, default "10m".
		IdleUnload duration `toml:"idle_unload"`
		// KeepPrompts is how much of the disk computed prompts of models that are not in
		// memory may use, encrypted, in the folder engine of Data; "0" keeps none, default
		// "2GiB". A conversation goes on where it was after IdleUnload and a restart. Only the
		// built-in engine can do that.
		KeepPrompts size `toml:"keep_prompts"`
	} `toml:"engine"`
	Discovery struct {
		// Enabled looks for engines on their usual ports on this machine; default true.
		Enabled bool `toml:"enabled"`
		// Endpoints are the base addresses of further engines; default none.
		Endpoints []web `toml:"endpoints"`
	} `toml:"discovery"`
	// Upstream is a service elsewhere that you have an account with; default none. There
	// can be several. Your own calls reach its models after those of this machine.
	Upstream []upstreamTable `toml:"upstream"`
	// Audio is an engine for speech. It is only offered while it refuses a clip of one
	// byte more than MaxUpload with 413; if it is not offered, kith status shows the
	// reason.
	Audio struct {
		// Engine is its base address; default none: no speech.
		Engine web `toml:"engine"`
		// MaxUpload is the largest clip to transcribe, through the hub and the local
		// surface; default "25MiB".
		MaxUpload size `toml:"max_upload"`
		// Model is the model id to request and to offer; default the engine's model if it
		// lists exactly one.
		Model fleet.ModelID `toml:"model"`
	} `toml:"audio"`
	Share struct {
		// Enabled lets calls from the hub run on this machine; default true.
		Enabled bool `toml:"enabled"`
		// Slots is the number of concurrent calls on this machine, and for each model of an
		// engine that does not report its own number; 0, the default, is the number that
		// its engines report. A call for n answers counts as n. The site can set a lower
		// number, never a higher one.
		Slots uint16 `toml:"slots"`
		// Models are the only models that calls from the hub may use, including your own
		// remote calls; default all that this machine serves.
		Models []fleet.ModelID `toml:"models"`
		// Groups are the names of the only groups whose members may use this machine;
		// default all your groups, and with [] none. Shares with single members are not
		// affected.
		Groups []string `toml:"groups"`
		// Cache is whether an engine with one shared prompt cache may cache the prompts of
		// others: "own", the default, caches only your prompts, and "all" everyone's. With
		// "all", the time that an answer takes can reveal to others what was asked before;
		// see docs/engines.md.
		Cache word[cacheable] `toml:"cache"`
		// Hours are when others may use this machine; default "", always.
		Hours hours `toml:"hours"`
		// Timezone is the IANA time zone of Hours; default "", this computer's. If that is
		// unknown, as in a container without TZ, Hours require a Timezone.
		Timezone timezone `toml:"timezone"`
		// YieldToLocal lets no call from the hub start, including your own remote calls,
		// while calls of local programs use the engines, and for 5 s after that; running
		// calls continue. Default true.
		YieldToLocal bool `toml:"yield_to_local"`
		// PauseOnBattery pauses this machine while it runs on battery; default true on a
		// laptop or a desktop, false on a server and a virtual machine.
		PauseOnBattery bool `toml:"pause_on_battery"`
		// PauseOnBusyGPU pauses it while a program other than an engine uses 1 GiB or more
		// of its GPU's memory; default as for PauseOnBattery.
		PauseOnBusyGPU bool `toml:"pause_on_busy_gpu"`
		// PauseOnHotCPU pauses it while its processor is hot: at 90 °C, or 5 below the
		// processor's own limit; default as for PauseOnBattery.
		PauseOnHotCPU bool `toml:"pause_on_hot_cpu"`
	} `toml:"share"`
	Privacy struct {
		// Sealed is whether your calls are encrypted for the machines that they may run on, so
		// that the hub cannot read them, and whether this machine opens such calls of others:
		// "prefer", the default, if these machines have keys, "require" only for machines whose keys you
		// compared with their owners, or "off".
		Sealed word[sealings] `toml:"sealed"`
	} `toml:"privacy"`
}

// upstreamTable is an [[upstream]].
type upstreamTable struct {
	// Name is your name for it; unique among them.
	Name string `toml:"name"`
	// URL is its base address with the /v1. It must be https unless it is on this machine.
	URL serviceURL `toml:"url"`
	// Dialect is the dialect of the service: "chat", the default (chat, embeddings and
	// responses), "embeddings" or "responses" for only one of them, or "messages".
	Dialect word[dialects] `toml:"dialect"`
	// Key is its key, or "env:NAME" or "file:PATH" to read it from; default none. It is
	// only sent to URL.
	Key secret `toml:"key"`
	// Models are the models to offer; default all that it lists.
	Models []fleet.ModelID `toml:"models"`
	// Share offers them to others too, at your expense; default false. Only for the
	// dialects chat and embeddings.
	Share bool `toml:"share"`
}

// hubFile is hub.toml: every key of `kith hub`, with its meaning and default.
type hubFile struct {
	Hub struct {
		// Listen is the public address; default "127.0.0.1:8700".
		Listen address `toml:"listen"`
		// PublicURL is the address that members use; default http://LISTEN.
		PublicURL publicAddress `toml:"public_url"`
		// Region is the region that this hub serves; default "local".
		Region region `toml:"region"`
		// Node is the name of this hub among those that share a PostgreSQL database, unique
		// in that database; default the computer's name. A hub that starts replaces one
		// with the same name, which exits.
		Node nodeName `toml:"node"`
		// Data is the folder for the embedded database, the records that are not in the
		// database yet, and the operator's socket; default KITH_HOME/hub. Each hub needs
		// its own.
		Data string `toml:"data"`
		// Drain is how long calls may continue when the hub shuts down; the rest are then
		// ended with CASCADE_EXHAUSTED. Default "30m". See docs/operate/upgrade.md.
		Drain duration `toml:"drain"`
		// Proxies are the addresses, or networks, of the proxies in front of this hub. The
		// client of a request from a proxy is the last address in X-Forwarded-For that is
		// not a proxy's, or the one in a PROXY header before the first request. In other
		// requests X-Forwarded-For is ignored. Default none. See docs/operate/proxy.md.
		Proxies []proxy `toml:"proxies"`
		// CORS are the origins of web applications that may call the API from a browser,
		// with a key but never with a cookie; default none.
		CORS []origin `toml:"cors"`
	} `toml:"hub"`
	Database struct {
		// URL is "", the default, for the embedded SQLite in Data; or the URL of a
		// PostgreSQL database (14 or newer), such as "postgres://USER:PASSWORD@HOST/NAME",
		// which several hubs can share; or "env:NAME" or "file:PATH" to read it from.
		// Several hosts, separated by commas, are tried in order. See
		// docs/operate/database.md.
		URL databaseURL `toml:"url"`
	} `toml:"database"`
	// Backup copies the embedded database on a schedule; kith admin restore restores a
	// copy. Use PostgreSQL's own tools to back up a PostgreSQL database. See
	// docs/operate/backup.md.
	Backup struct {
		// Every is how often to copy it, such as "24h"; "0s", the default, is never.
		Every duration `toml:"every"`
		// Keep is how many copies to keep, the newest ones; default 7.
		Keep uint16 `toml:"keep"`
		// Folder is the folder for the copies; default the folder backups in hub.data. Use
		// a folder on another disk to survive the loss of this one.
		Folder string `toml:"folder"`
	} `toml:"backup"`
	// Peer connects the hubs of a region that share a PostgreSQL database: machines and
	// callers may connect to any of them.
	Peer struct {
		// Listen is the address for connections from the other hubs; default ":8703" if
		// Address is set, else none. It only serves hubs that are registered in the
		// database.
		Listen address `toml:"listen"`
		// Address is the address that the other hubs dial; default the computer's name and
		// the port of Listen.
		Address address `toml:"address"`
	} `toml:"peer"`
	// Regions are the addresses of the other regions in the same database, by name, such
	// as us = "https://us.example.org"; default none. Members can create keys for every
	// region, and a call with a key of another region is forwarded there. See
	// docs/operate/regions.md.
	Regions map[string]regionAddress `toml:"regions"`
	// Limits limit single calls, the calls of one member, and the memory for all calls.
	// Each hub node counts separately.
	Limits struct {
		// Running is how many calls of one member may run on machines at the same time,
		// including the member's own machines; 0 is off, default 64.
		Running uint16 `toml:"running"`
		// Waiting is how many calls of one member may wait for a machine at the same time;
		// 0 is off, default 256.
		Waiting uint16 `toml:"waiting"`
		// Machines is how many machines of one member may be connected; 0 is off, default
		// 1000.
		Machines uint16 `toml:"machines"`
		// Body is the largest request body; default "32MiB".
		Body size `toml:"body"`
		// Upload is the largest clip to transcribe; default "25MiB".
		Upload size `toml:"upload"`
		// Member is how many bytes of current requests and answers one member may have, in
		// memory and on disk; default "256MiB". Further calls are refused with
		// CAPACITY_FULL.
		Member size `toml:"member"`
		// Spool is how many bytes of requests and answers may be in files, in the folder
		// spool of Data; default "2GiB". A quarter of the hub's memory is for those in
		// memory: when half of it is used, those over 1 MiB go to files. One member can use
		// at most half of each.
		Spool size `toml:"spool"`
		// Wait is how long a call may wait for a machine; default "60s".
		Wait duration `toml:"wait"`
		// WaitStream is how long a streamed call may wait; default "180s".
		WaitStream duration `toml:"wait_stream"`
		// FirstByte is how long a machine that accepted a call may take until the first
		// byte; default "10m".
		FirstByte duration `toml:"first_byte"`
		// Idle is how long an answer may pause after that; default "2m".
		Idle duration `toml:"idle"`
		// Total is how long a streamed call may take in total; default "30m".
		Total duration `toml:"total"`
	} `toml:"limits"`
	Responses struct {
		// Keep is how long a response of /v1/responses can be referenced by its id, which
		// is required to read it; "0s" is never, default "24h".
		Keep duration `toml:"keep"`
	} `toml:"responses"`
	// RateLimit limits each key and machine credential; 0 is off.
	RateLimit struct {
		// RPS is requests per second; default 50.
		RPS uint32 `toml:"rps"`
		// Burst is how many may arrive at once; default 100.
		Burst uint32 `toml:"burst"`
		// Connections is how many connections one client may have open or, behind one of
		// hub.proxies, how many requests; an IPv6 /64 is one client, and machines' tunnels
		// do not count. Default 200.
		Connections uint32 `toml:"connections"`
	} `toml:"ratelimit"`
	// Site is the site for members.
	Site struct {
		// SignUp is who may create an account: "open" is everyone, "invite", the default,
		// everyone with a member's invite, "closed" no one.
		SignUp word[signUps] `toml:"signup"`
		// OIDC is an OpenID provider that members can sign in with. Register
		// PUBLIC_URL/signin/provider/back there as the redirect address.
		OIDC oidcTable `toml:"oidc"`
		// SMTP is a mail server; default none: the hub sends no mail. With one, members can
		// register an address, to be notified of changes to their accounts and to get links
		// to sign in. The messages contain PUBLIC_URL.
		SMTP smtpTable `toml:"smtp"`
	} `toml:"site"`
	// TLS is the certificate of the public address, either from files or from a
	// certificate authority. See docs/operate/tls.md.
	TLS tlsTable `toml:"tls"`
	// Log configures what the hub writes to standard error.
	Log logTable `toml:"log"`
}

// tlsTable is [tls].
type tlsTable struct {
	// Certificate is a PEM file with the certificate chain; default none: plain HTTP, for
	// loopback or behind a proxy. It is reloaded when it changes.
	Certificate string `toml:"certificate"`
	// Key is the PEM file with its private key, readable only by its owner and at most one
	// group.
	Key string `toml:"key"`
	// ACME obtains a certificate for Domains from Let's Encrypt and renews it; this
	// accepts their terms; default false. Port 443 of each domain must lead to the public
	// address. It works for a single hub, not for several with [peer].
	ACME bool `toml:"acme"`
	// Domains are the names of this hub in the certificate.
	Domains []domain `toml:"domains"`
	// Email is the address for the authority's warnings; default none.
	Email string `toml:"email"`
	// Directory is the directory address of another authority; default "", Let's Encrypt.
	Directory acmeDirectory `toml:"directory"`
}

// domains returns the names to request a certificate for.
func (t *tlsTable) domains() []string {
	return convert(t.Domains, func(d domain) string { return d.Text })
}

// logTable is [log].
type logTable struct {
	// Level is the lowest level to log: "debug", "info", the default, "warn" or "error".
	Level word[levels] `toml:"level"`
	// Format is "text", the default, or "json".
	Format word[formats] `toml:"format"`
}

// oidcTable is [site.oidc].
type oidcTable struct {
	// Issuer is the provider's address, exactly as the provider writes it; default none.
	// It must be https unless it is on this machine.
	Issuer issuer `toml:"issuer"`
	// ClientID is the id of this hub at the provider.
	ClientID string `toml:"client_id"`
	// ClientSecret is the hub's secret at the provider, or "env:NAME" or "file:PATH" to
	// read it from; default none, for a public client.
	ClientSecret password `toml:"client_secret"`
	// Name is the label of the button; default the issuer's host.
	Name string `toml:"name"`
}

// smtpTable is [site.smtp].
type smtpTable struct {
	// Host is the mail server's name, as in its certificate; default none.
	Host string `toml:"host"`
	// Port is its port; 0, the default, is 465 for TLS "implicit", else 587.
	Port uint16 `toml:"port"`
	// User is the user to sign in as; default none: without authentication.
	User string `toml:"user"`
	// Password is the user's, or "env:NAME" or "file:PATH" to read it from.
	Password password `toml:"password"`
	// From is the sender's address, such as "kith@example.org" or
	// "kith <kith@example.org>".
	From sender `toml:"from"`
	// TLS is "starttls", the default, which the server must support; "implicit", from the
	// first byte; or "none", only for a server on this machine.
	TLS word[mailTLS] `toml:"tls"`
}

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
	c.Hub.Remote = true
	c.Engine.IdleUnload.Duration = 10 * time.Minute
	c.Engine.KeepPrompts.Bytes = 2 << 30
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
