package cli

import "github.com/kith/kith/internal/fleet"

// daemonFile is ~/.kith/config.toml: every key of `kith serve`, with its meaning and
// default. An absent file, section or key has its default.
type daemonFile struct {
	Daemon struct {
		// Listen is the address of the local surface, a loopback literal;
		// default "127.0.0.1:8701".
		Listen loopback `toml:"listen"`
		// Data is the folder of the daemon's own state; default KITH_HOME.
		Data string `toml:"data"`
	} `toml:"daemon"`
	Hub struct {
		// URL is the hub of `kith login` without --hub; default none.
		URL web `toml:"url"`
		// Reach is what calls made on this machine may reach through the hub: "all", the
		// default, "shared" (your machines and those shared with you) or "own". The header
		// X-Kith-Reach narrows one call.
		Reach reachWord `toml:"reach"`
	} `toml:"hub"`
	// RateLimit bounds all requests of the local surface together. It absorbs spikes
	// and is no quota.
	RateLimit struct {
		// Enabled turns the limit on; default true.
		Enabled bool `toml:"enabled"`
		// RPS is requests a second; default 100.
		RPS uint32 `toml:"rps"`
		// Burst is how many may come at once; default 200.
		Burst uint32 `toml:"burst"`
	} `toml:"ratelimit"`
	Engine struct {
		// Builtin runs the engine that comes with kith; default true.
		Builtin bool `toml:"builtin"`
		// Models are GGUF files, or folders of them, that are offered under their
		// file names; default ["~/.kith/models"]. Folders are watched, with the folders
		// in them. A llama-server on this machine's PATH runs the files, else the
		// built-in engine.
		Models []string `toml:"models"`
		// Slots is how many calls are run at once for each model; 0, the default,
		// is 4.
		Slots uint16 `toml:"slots"`
		// Context is the context length in tokens of each slot; 0, the default,
		// is 8192. A model made for less has its own.
		Context uint32 `toml:"context"`
		// IdleUnload is how long after its last call a model is unloaded from memory;
		// "0s" is never, default "10m".
		IdleUnload duration `toml:"idle_unload"`
	} `toml:"engine"`
	Discovery struct {
		// Enabled looks for engines at their usual ports on this machine;
		// default true.
		Enabled bool `toml:"enabled"`
		// Endpoints are the base addresses of more engines; default none.
		Endpoints []web `toml:"endpoints"`
	} `toml:"discovery"`
	// Upstream, as often as you like, is a service elsewhere that you have an
	// account with; default none. Your own calls reach its models after those of
	// this machine.
	Upstream []upstreamTable `toml:"upstream"`
	// Audio is an engine for speech. It is offered only while it refuses a clip one
	// byte over MaxUpload with 413; kith status says why it is not.
	Audio struct {
		// Engine is its base address; default none: no speech.
		Engine web `toml:"engine"`
		// MaxUpload is the largest clip, here and on the local surface; default
		// "25MiB".
		MaxUpload size `toml:"max_upload"`
		// Model is the id it is asked for and offered under; default the one that
		// it lists, if that is one.
		Model fleet.ModelID `toml:"model"`
	} `toml:"audio"`
	Share struct {
		// Enabled lets calls from the hub run on this machine; default true.
		Enabled bool `toml:"enabled"`
		// Slots is how many calls this machine runs at once, and each model of an engine
		// that does not report its own number; 0, the default, is
		// what its engines say. A call for n answers counts as n. On the site it can
		// be set to fewer, never to more.
		Slots uint16 `toml:"slots"`
		// Models are the only ones that calls from the hub may use, your own from
		// elsewhere too; default all that this machine serves.
		Models []fleet.ModelID `toml:"models"`
		// Groups are the names of the only groups whose members may use this
		// machine; default all that you are in, and with [] none. Shares with single
		// members are not affected.
		Groups []string `toml:"groups"`
		// Cache is whose prompts an engine may keep that cannot keep callers apart:
		// "own", the default, is your own alone, and "all" everyone's. With "all" the
		// time of an answer can reveal to others what was asked before; see
		// docs/engines.md.
		Cache cacheWord `toml:"cache"`
		// Hours are when others may use this machine; default "", always.
		Hours hours `toml:"hours"`
		// Timezone is the IANA zone of Hours; default "", this computer's. Where that is
		// not known, as in a container without TZ, Hours are refused without it.
		Timezone timezone `toml:"timezone"`
		// YieldToLocal lets no call from the hub begin, your own from elsewhere
		// neither, while calls of programs here use the engines, and for 5 s after;
		// what runs already runs on. Default true.
		YieldToLocal bool `toml:"yield_to_local"`
		// PauseOnBattery pauses this machine while it runs on its battery; default
		// true on a laptop or a desktop, false on a server and a virtual machine.
		PauseOnBattery bool `toml:"pause_on_battery"`
		// PauseOnBusyGPU pauses it while a program that is no engine holds 1 GiB or
		// more of its GPU's memory; default as for PauseOnBattery.
		PauseOnBusyGPU bool `toml:"pause_on_busy_gpu"`
		// PauseOnHotCPU pauses it while its processor is hot: 90 °C, or 5 under the
		// processor's own limit; default as for PauseOnBattery.
		PauseOnHotCPU bool `toml:"pause_on_hot_cpu"`
	} `toml:"share"`
}

// upstreamTable is one [[upstream]].
type upstreamTable struct {
	// Name is what you call it; each its own.
	Name string `toml:"name"`
	// URL is its base with the /v1. Off this machine it is https.
	URL serviceURL `toml:"url"`
	// Dialect is what it speaks: "chat", the default (chat, embeddings and
	// responses), "embeddings" or "responses" for one of them alone, or "messages".
	Dialect dialectWord `toml:"dialect"`
	// Key is its key, or "env:NAME" or "file:PATH" to read it from; default
	// none. It is sent to URL only.
	Key secret `toml:"key"`
	// Models are those to offer; default all that it lists.
	Models []fleet.ModelID `toml:"models"`
	// Share offers them to others too, at your expense; default false. For the
	// dialects chat and embeddings.
	Share bool `toml:"share"`
}

// hubFile is hub.toml: every key of `kith hub`, with its meaning and default.
type hubFile struct {
	Hub struct {
		// Listen is the public address; default "127.0.0.1:8700".
		Listen address `toml:"listen"`
		// PublicURL is the address members see; default http://LISTEN.
		PublicURL publicAddress `toml:"public_url"`
		// Region is the region this hub serves; default "local".
		Region region `toml:"region"`
		// Node is this hub's name among those that share a PostgreSQL database, its own
		// in each of them; default the computer's name. A hub that starts replaces the
		// one of its name, which ends.
		Node nodeName `toml:"node"`
		// Data is the folder of the embedded database, the records that are not in the
		// database yet, and the operator's socket; default KITH_HOME/hub. Each hub has
		// its own.
		Data string `toml:"data"`
		// Drain is how long calls go on once the hub is to end; what is left then is ended
		// with CASCADE_EXHAUSTED. Default "30m". See docs/operate/upgrade.md.
		Drain duration `toml:"drain"`
		// Proxies are the addresses, or networks, of the proxies in front of this hub:
		// of their requests the client is the last address in X-Forwarded-For that is
		// not a proxy's, or the one that a PROXY header names before the first request.
		// From all others X-Forwarded-For is ignored. Default none. See
		// docs/operate/proxy.md.
		Proxies []proxy `toml:"proxies"`
		// CORS are the origins of web applications that may call the API from a
		// browser, with a key and never with a cookie; default none.
		CORS []origin `toml:"cors"`
	} `toml:"hub"`
	Database struct {
		// URL is "", the default, for the embedded SQLite in Data; or the URL of a
		// PostgreSQL database (14 or newer), such as "postgres://USER:PASSWORD@HOST/NAME",
		// which several hubs may share; or "env:NAME" or "file:PATH" to read it from.
		// Several hosts, separated by commas, are tried in turn. See docs/operate/database.md.
		URL databaseURL `toml:"url"`
	} `toml:"database"`
	// Backup copies the embedded database by a schedule; kith admin restore brings a copy
	// back. A PostgreSQL database is backed up with its own tools. See
	// docs/operate/backup.md.
	Backup struct {
		// Every is how often, such as "24h"; "0s", the default, is never.
		Every duration `toml:"every"`
		// Keep is how many copies stay, the newest; default 7.
		Keep uint16 `toml:"keep"`
		// Folder is where they are; default the folder backups in hub.data. A folder on
		// another disk outlives this one.
		Folder string `toml:"folder"`
	} `toml:"backup"`
	// Peer connects the hubs of one region that share a PostgreSQL database: a machine
	// connects to any of them, and a call comes to any of them.
	Peer struct {
		// Listen is where the other hubs reach this one; default ":8703" if Address is
		// set, else none. Only hubs that the database knows are served there.
		Listen address `toml:"listen"`
		// Address is that address as the other hubs dial it; default the computer's name
		// and the port of Listen.
		Address address `toml:"address"`
	} `toml:"peer"`
	// Regions has the address of each other region of the same database, by its name, such
	// as us = "https://us.example.org"; default none. Members create keys of every region,
	// and a call that comes here with a key of another region is forwarded there. See
	// docs/operate/regions.md.
	Regions map[string]regionAddress `toml:"regions"`
	// Limits bound one call, the calls of one member, and the bytes held for all calls.
	// Each hub node counts for itself.
	Limits struct {
		// Running is how many calls of one member run on machines at once, the
		// member's own machines included; 0 is off, default 64.
		Running uint16 `toml:"running"`
		// Waiting is how many calls of one member wait for a machine at once; 0 is
		// off, default 256.
		Waiting uint16 `toml:"waiting"`
		// Machines is how many machines of one member may be connected; 0 is off,
		// default 1000.
		Machines uint16 `toml:"machines"`
		// Body is the largest request body; default "32MiB".
		Body size `toml:"body"`
		// Upload is the largest clip to transcribe; default "25MiB".
		Upload size `toml:"upload"`
		// Member is how many bytes of requests and answers underway one member may
		// have at once, in memory and on disk; default "256MiB". Calls beyond it are
		// refused with CAPACITY_FULL.
		Member size `toml:"member"`
		// Spool is how many bytes of requests and answers over 1 MiB are kept in files,
		// in the folder spool of Data; default "2GiB". Smaller ones may fill a quarter
		// of the hub's memory. One member has at most half of either.
		Spool size `toml:"spool"`
		// Wait is how long a call waits for a machine; default "60s".
		Wait duration `toml:"wait"`
		// WaitStream is how long a streamed call waits; default "180s".
		WaitStream duration `toml:"wait_stream"`
		// FirstByte is how long a machine that took a call may stay silent before
		// its first byte; default "10m".
		FirstByte duration `toml:"first_byte"`
		// Idle is how long an answer may fall silent after that; default "2m".
		Idle duration `toml:"idle"`
		// Total is how long a streamed call may take in all; default "30m".
		Total duration `toml:"total"`
	} `toml:"limits"`
	Responses struct {
		// Keep is how long a turn of /v1/responses can be referred to by its id, which
		// is needed to read it; "0s" is never, default "24h".
		Keep duration `toml:"keep"`
	} `toml:"responses"`
	// RateLimit bounds each key and machine credential; 0 is off.
	RateLimit struct {
		// RPS is requests a second; default 50.
		RPS uint32 `toml:"rps"`
		// Burst is how many may come at once; default 100.
		Burst uint32 `toml:"burst"`
		// Connections is how many connections one client may hold at once, and behind
		// one of hub.proxies how many requests; an IPv6 /64 is one client, and machines'
		// tunnels are not counted. Default 200.
		Connections uint32 `toml:"connections"`
	} `toml:"ratelimit"`
	// Site is the members' pages.
	Site struct {
		// SignUp says who may make an account: "open" is everyone, "invite", the
		// default, everyone with a member's invite, "closed" no one.
		SignUp signUp `toml:"signup"`
		// OIDC is an OpenID provider at which members may sign in too. Register
		// PUBLIC_URL/signin/provider/back there as the address to come back to.
		OIDC oidcTable `toml:"oidc"`
		// SMTP is a mail server; default none: the hub sends no mail. With one,
		// members may give an address, which is notified of changes to their
		// accounts and can be mailed a link that signs in. The messages hold PUBLIC_URL.
		SMTP smtpTable `toml:"smtp"`
	} `toml:"site"`
	// TLS is the certificate of the public address: from files, or from a certificate
	// authority. See docs/operate/tls.md.
	TLS tlsTable `toml:"tls"`
	// Log is what the hub writes to its standard error.
	Log logTable `toml:"log"`
}

// tlsTable is [tls].
type tlsTable struct {
	// Certificate is a PEM file with the certificate chain; default none: plain HTTP,
	// for loopback or behind a proxy. It is read again when it changes.
	Certificate string `toml:"certificate"`
	// Key is the PEM file of its private key, readable by its owner and at most one
	// group.
	Key string `toml:"key"`
	// ACME gets the certificate of Domains from Let's Encrypt, whose terms you accept
	// thereby, and renews it; default false. Port 443 of each domain has to lead to the
	// public address. It is for one hub, not for several with [peer].
	ACME bool `toml:"acme"`
	// Domains are the names of this hub in the certificate.
	Domains []domain `toml:"domains"`
	// Email is where the authority sends warnings; default none.
	Email string `toml:"email"`
	// Directory is the address of another authority's directory; default "", Let's
	// Encrypt.
	Directory acmeDirectory `toml:"directory"`
}

// domains returns the names for which a certificate is requested.
func (t *tlsTable) domains() []string {
	return convert(t.Domains, func(d domain) string { return d.Text })
}

// logTable is [log].
type logTable struct {
	// Level is the least important kind of line: "debug", "info", the default, "warn" or
	// "error".
	Level logLevel `toml:"level"`
	// Format is "text", the default, or "json".
	Format logFormat `toml:"format"`
}

// oidcTable is [site.oidc].
type oidcTable struct {
	// Issuer is the provider's address, exactly as it calls itself; default none.
	// Off this machine it is https.
	Issuer issuer `toml:"issuer"`
	// ClientID is what the provider knows this hub by.
	ClientID string `toml:"client_id"`
	// ClientSecret is the secret it gave the hub, or "env:NAME" or "file:PATH" to
	// read it from; default none, for a public client.
	ClientSecret password `toml:"client_secret"`
	// Name is the text of the button; default the issuer's host.
	Name string `toml:"name"`
}

// smtpTable is [site.smtp].
type smtpTable struct {
	// Host is the mail server's name, as in its certificate; default none.
	Host string `toml:"host"`
	// Port is its port; 0, the default, is 465 for TLS "implicit", else 587.
	Port uint16 `toml:"port"`
	// User signs in there; default none: without a sign-in.
	User string `toml:"user"`
	// Password is the user's, or "env:NAME" or "file:PATH" to read it from.
	Password password `toml:"password"`
	// From is the sender's address, such as "kith@example.org" or
	// "kith <kith@example.org>".
	From sender `toml:"from"`
	// TLS is "starttls", the default: the server has to have it; "implicit": from
	// the first byte; or "none", for a server on this machine only.
	TLS mailTLS `toml:"tls"`
}
