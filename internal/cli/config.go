package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/host"
	"github.com/kith/kith/internal/site"
)

// problem is an error in a configuration file. Line and column start at 1; 0 means the
// file as a whole.
type problem struct {
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Key     string `json:"key"` // dotted, such as "hub.listen"; empty if no particular key is wrong
	Message string `json:"message"`
	// secret reports that the problem is a secret whose source is not available here.
	secret bool
}

// configError is the error for an invalid configuration file.
type configError struct {
	File     string
	Problems []problem
}

// Error returns one line: the first problem with its position, and the number of others.
func (e *configError) Error() string {
	text := "cannot use the configuration: " + e.place(e.Problems[0])
	if more := len(e.Problems) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more; `kith config check %s` lists all)", more, e.File)
	}
	return text
}

// place formats a problem as file:line:column: message.
func (e *configError) place(p problem) string {
	if p.Line == 0 {
		return e.File + ": " + p.Message
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, p.Line, p.Column, p.Message)
}

// readConfig decodes the TOML file strictly into a pointer to a struct with the defaults.
// If the file does not exist, the defaults remain, unless the user named the file. The
// error for invalid content is a *configError.
func readConfig(file string, named bool, into any) error {
	text, err := host.ReadText(file)
	if errors.Is(err, fs.ErrNotExist) && !named {
		return nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("cannot read the configuration: %w%s", err, host.WhoseFolder(file))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot read the configuration: %w; name a file that you can read", err)
	}
	if err != nil {
		return fmt.Errorf("cannot read the configuration: %w", err)
	}
	// The file decides who may use this machine and where prompts are sent.
	if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o002 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("cannot trust %s: every user can change it; run `chmod 600 %s`", file, file)
	}
	return parseConfig(file, text, into)
}

// parseConfig is readConfig for a text. file is its name in errors.
func parseConfig(file string, text []byte, into any) error {
	refused := &configError{File: file, Problems: unknownKeys(text, reflect.TypeOf(into).Elem())}
	if refused.Problems != nil {
		return refused
	}
	err := toml.NewDecoder(strings.NewReader(string(text))).DisallowUnknownFields().Decode(into)
	if err == nil {
		switch c := into.(type) {
		case *daemonFile:
			refused.Problems = append(c.resolveUpstreams(file, text), placed(text, c.contradictions())...)
		case *hubFile:
			refused.Problems = placed(text, append(c.resolveSecrets(file), c.contradictions()...))
		}
		if refused.Problems == nil {
			return nil
		}
		return refused
	}
	shape := reflect.TypeOf(into).Elem()
	var unknown *toml.StrictMissingError
	var wrong *toml.DecodeError
	switch {
	case errors.As(err, &unknown):
		known := keysOf(shape, "")
		for i := range unknown.Errors {
			line, column := unknown.Errors[i].Position()
			key := strings.Join(unknown.Errors[i].Key(), ".")
			refused.Problems = append(refused.Problems, problem{Line: line, Column: column, Key: key, Message: unknownKey(key, known)})
		}
	case errors.As(err, &wrong):
		line, column := wrong.Position()
		key := strings.Join(wrong.Key(), ".")
		refused.Problems = []problem{{Line: line, Column: column, Key: key, Message: wrongValue(key, shape, wrong)}}
	default:
		refused.Problems = []problem{unquoted(text, shape, err)}
	}
	return refused
}

// unknownKeys returns the keys that the file may not contain. The decoder ignores unknown
// keys in inline tables and accepts other cases, such as Slots, but here every key has a
// single spelling.
func unknownKeys(text []byte, shape reflect.Type) (problems []problem) {
	known := keysOf(shape, "")
	walk(text, func(e entry) {
		parts := slices.Concat(e.table, e.key)
		unknownTable := len(e.table) > 0 && len(e.key) > 0 && fieldOf(shape, e.table) == nil // already reported at the table's header
		if len(parts) == 0 || unknownTable || fieldOf(shape, parts) != nil {
			return
		}
		key := strings.Join(parts, ".")
		problems = append(problems, problem{Line: e.keyAt.Line, Column: e.keyAt.Column, Key: key, Message: unknownKey(key, known)})
	})
	return problems
}

// contradiction is a key whose value is valid alone. If is holds, it is not valid beside
// the others.
type contradiction struct {
	is           bool
	key, message string
}

// firstOf returns the first contradiction as a list of problems.
func firstOf(all []contradiction) []problem {
	for _, c := range all {
		if c.is {
			return wrongKey(c.key, c.message)
		}
	}
	return nil
}

// wrongKey returns a single problem with a key.
func wrongKey(key, message string) []problem {
	return []problem{{Key: key, Message: key + " " + message}}
}

// noBurst is the message about a burst of 0.
const noBurst = "takes 1 or more where there is a rate: with 0 every request would be refused; "

// contradictions returns the keys whose values are valid alone but not together.
func (c *daemonFile) contradictions() []problem {
	rate := c.RateLimit
	problems := firstOf([]contradiction{
		{rate.Enabled && rate.RPS > 0 && rate.Burst == 0, "ratelimit.burst", noBurst + "enabled = false is no limit"},
	})
	if c.Share.Hours.Text == "" || c.Share.Timezone.Text != "" || problems != nil {
		return problems
	}
	if _, err := host.Zone(); err != nil {
		why := fmt.Sprintf("takes share.timezone beside it: the time zone of this computer is not known (%v)", err)
		return wrongKey("share.hours", why)
	}
	return nil
}

func (c *hubFile) contradictions() []problem {
	t, every, peers := c.TLS, c.Backup.Every.Duration, c.Peer.Listen.Text != "" || c.Peer.Address.Text != ""
	return slices.Concat(
		firstOf([]contradiction{{c.RateLimit.RPS > 0 && c.RateLimit.Burst == 0, "ratelimit.burst", noBurst + "rps = 0 is no limit"}}),
		firstOf([]contradiction{
			{t.Certificate != "" && t.Key == "", "tls.certificate", "is of no use without tls.key: set both"},
			{t.Certificate == "" && t.Key != "", "tls.key", "is of no use without tls.certificate: set both"},
		}),
		firstOf([]contradiction{
			{t.ACME && t.Certificate != "", "tls.acme", "is of no use beside tls.certificate: remove one of them"},
			{t.ACME && len(t.Domains) == 0, "tls.acme", "is of no use without tls.domains: name this hub as members do"},
			{t.ACME && peers, "tls.acme", "is for one hub, and this one has others beside it ([peer]): " +
				"end TLS at the proxy in front of them, or give each the files of one certificate"},
			{!t.ACME && len(t.Domains) > 0, "tls.domains", "is of no use without tls.acme: set both"},
			{!t.ACME && t.Email != "", "tls.email", "is of no use without tls.acme: set both"},
			{!t.ACME && t.Directory.Text != "", "tls.directory", "is of no use without tls.acme: set both"},
		}),
		firstOf([]contradiction{
			{every > 0 && c.Database.URL.text != "", "backup.every",
				"is for the embedded database; back up PostgreSQL with its own tools (docs/operate/backup.md)"},
			{every > 0 && every < time.Minute, "backup.every", `takes "1m" or longer, or "0s" for never`},
			{every > 0 && c.Backup.Keep == 0, "backup.keep", "takes 1 or more: with 0 no backup would stay"},
		}),
		c.regionContradictions(), c.Site.OIDC.contradictions(), c.Site.SMTP.contradictions())
}

func (c *hubFile) regionContradictions() (problems []problem) {
	names := slices.Sorted(maps.Keys(c.Regions))
	for _, name := range names {
		key := "regions." + name
		problems = append(problems, firstOf([]contradiction{
			{!credential.ValidRegion(name), key, `is no region: a name is 1 to 16 of a-z, 0-9 and "-"`},
			{name == c.Hub.Region.Text, key, "is the region of this hub (hub.region): name the others only"},
			{c.Regions[name].URL.String() == c.Hub.PublicURL.Text, key,
				"takes the address of another region: this is hub.public_url"},
		})...)
	}
	if problems == nil && len(names) > 0 && c.Database.URL.text == "" {
		return wrongKey("regions."+names[0], "is of no use without database.url: regions share a PostgreSQL database")
	}
	return problems
}

func (o *oidcTable) contradictions() []problem {
	return firstOf([]contradiction{
		{o.Issuer.Text != "" && o.ClientID == "", "site.oidc.issuer",
			"is of no use without site.oidc.client_id: register this hub at the provider, and set both"},
		{o.Issuer.Text == "" && o.ClientID != "", "site.oidc.client_id", "is of no use without site.oidc.issuer: set both"},
		{len(o.Name) > 40 || !fleet.ModelID(o.Name).Valid() && o.Name != "", "site.oidc.name",
			"is on a button: give it 1 to 40 printable bytes"},
	})
}

func (m *smtpTable) contradictions() []problem {
	if m.Host == "" {
		for field := range reflect.TypeOf(*m).Fields() {
			if !reflect.ValueOf(*m).FieldByIndex(field.Index).IsZero() {
				return wrongKey("site.smtp."+field.Tag.Get("toml"), "is of no use without site.smtp.host: set both")
			}
		}
		return nil
	}
	domain := strings.Trim(strings.ToLower(m.Host), "abcdefghijklmnopqrstuvwxyz0123456789.-:") == ""
	return firstOf([]contradiction{
		{!domain, "site.smtp.host", `takes the name of a mail server, such as "mail.example.org": its port is site.smtp.port`},
		{m.From.Text == "", "site.smtp.host", "is of no use without site.smtp.from, the sender's address: set both"},
		{m.User != "" && m.Password.text == "", "site.smtp.user", "is of no use without site.smtp.password: set both"},
		{m.User == "" && m.Password.text != "", "site.smtp.password", "is of no use without site.smtp.user: set both"},
		{m.TLS.Text == "none" && !isLocalHost(m.Host), "site.smtp.tls", `takes "starttls" or "implicit" for a server ` +
			"that is not on this machine: without TLS others on the network could sign in as any member"},
	})
}

// otherRegions returns the addresses in [regions].
func (c *hubFile) otherRegions() map[string]*url.URL {
	others := make(map[string]*url.URL, len(c.Regions))
	for name, at := range c.Regions {
		others[name] = at.URL
	}
	return others
}

func (m *smtpTable) mail() site.Mail {
	if m.Host == "" {
		return site.Mail{}
	}
	port := 587
	if m.TLS.Text == "implicit" {
		port = 465
	}
	return site.Mail{
		Host: m.Host, Port: cmp.Or(int(m.Port), port), User: m.User, Password: m.Password.text, From: m.From.Text, TLS: site.MailTLS(m.TLS.Text),
	}
}

// onlySecrets reports whether a configuration is valid except for missing secrets. A
// command that does not use them can continue: a service's secrets may only be in the
// service's environment.
func onlySecrets(err error) bool {
	var refused *configError
	return errors.As(err, &refused) && !slices.ContainsFunc(refused.Problems, func(p problem) bool { return !p.secret })
}

// hasProblem reports whether there is a problem with the key.
func hasProblem(err error, key string) bool {
	var refused *configError
	return errors.As(err, &refused) && slices.ContainsFunc(refused.Problems, func(p problem) bool { return p.Key == key })
}

func (c *hubFile) resolveSecrets(file string) (problems []problem) {
	defer func() {
		for i := range problems {
			problems[i].secret = true
		}
	}()
	if err := c.Database.URL.resolve(file); err != nil {
		problems = wrongKey("database.url", err.Error())
	}
	if err := c.Site.OIDC.ClientSecret.resolve(file); err != nil {
		problems = append(problems, wrongKey("site.oidc.client_secret", err.Error())...)
	}
	if err := c.Site.SMTP.Password.resolve(file); err != nil {
		problems = append(problems, wrongKey("site.smtp.password", err.Error())...)
		c.Site.SMTP = smtpTable{} // do not report further problems caused by the missing password
	}
	return problems
}

func (o *oidcTable) provider() site.Provider {
	p := site.Provider{Issuer: o.Issuer.Text, ClientID: o.ClientID, ClientSecret: o.ClientSecret.text, Name: o.Name}
	if u, err := url.Parse(p.Issuer); err == nil {
		p.Name = cmp.Or(p.Name, u.Host)
	}
	return p
}

// placed sets the position of each problem to that of the key's value in the text.
func placed(text []byte, problems []problem) []problem {
	if problems == nil {
		return nil
	}
	walk(text, func(e entry) {
		for i := range problems {
			if e.value != nil && problems[i].Key == e.path() {
				problems[i].Line, problems[i].Column = e.valueAt.Line, e.valueAt.Column
			}
		}
	})
	return problems
}

// entry is a table header, or a key with its value.
type entry struct {
	table, key     []string
	value          *unstable.Node // nil for a header
	keyAt, valueAt unstable.Position
}

func (e entry) path() string { return strings.Join(slices.Concat(e.table, e.key), ".") }

// walk calls each for every entry of a text.
func walk(text []byte, each func(entry)) {
	var parser unstable.Parser
	parser.Reset(text)
	var table []string
	for parser.NextExpression() {
		expression := parser.Expression()
		var parts []string
		var first unstable.Range
		for it := expression.Key(); it.Next(); parts = append(parts, string(it.Node().Data)) {
			if parts == nil {
				first = it.Node().Raw
			}
		}
		found := entry{keyAt: parser.Shape(first).Start}
		if expression.Kind == unstable.KeyValue {
			found.key, found.value = parts, expression.Value()
			found.valueAt = parser.Shape(found.value.Raw).Start
		} else {
			table = parts
		}
		found.table = table
		each(found)
	}
}

// unquoted finds a number or boolean where a key requires a string, such as 60 for "60s".
// The decoder's error does not contain the position.
func unquoted(text []byte, shape reflect.Type, cause error) problem {
	found := problem{Message: cause.Error()}
	walk(text, func(e entry) {
		parts := slices.Concat(e.table, e.key)
		field := fieldOf(shape, parts)
		if found.Key == "" && e.value != nil && field != nil && field.Kind() == reflect.Struct && !section(field) && e.value.Kind != unstable.String {
			found = problem{Line: e.valueAt.Line, Column: e.valueAt.Column, Key: e.path(), Message: e.path() + " takes " + takes(field)}
		}
	})
	return found
}

// wrongValue describes the valid values of a key, without Go's type names.
func wrongValue(key string, shape reflect.Type, err *toml.DecodeError) string {
	text := strings.TrimPrefix(err.Error(), "toml: ")
	if key == "" {
		return text
	}
	if !strings.HasPrefix(text, "cannot decode TOML ") && !strings.Contains(text, "cannot be stored") {
		return key + " " + text
	}
	return fmt.Sprintf("%s takes %s", key, takes(fieldOf(shape, strings.Split(key, "."))))
}

// takes describes the valid values of a field.
func takes(field reflect.Type) string {
	if field == nil {
		return "another kind of value"
	}
	if described, ok := reflect.New(field).Interface().(interface{ takes() string }); ok {
		return described.takes()
	}
	switch field.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Uint16, reflect.Uint32:
		return fmt.Sprintf("an integer from 0 to %d", uint64(1)<<field.Bits()-1)
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		if section(field) {
			return "tables, such as [[section]]"
		}
		return "a list of strings, such as [\"a\", \"b\"]"
	case reflect.Struct, reflect.Map:
		return "a table, such as [section]"
	default:
		return "a string in quotes"
	}
}

// section reports whether a field is a table or a list of tables.
func section(field reflect.Type) bool {
	field = tableOf(field)
	_, value := reflect.New(field).Interface().(interface{ UnmarshalText([]byte) error })
	return field.Kind() == reflect.Struct && !value
}

// tableOf returns the type of a table or of the elements of a list of tables.
func tableOf(field reflect.Type) reflect.Type {
	if field.Kind() == reflect.Slice {
		return field.Elem()
	}
	return field
}

// keysOf returns all dotted keys that a file may contain, including sections.
func keysOf(shape reflect.Type, prefix string) []string {
	var keys []string
	for field := range shape.Fields() {
		key := prefix + field.Tag.Get("toml")
		keys = append(keys, key)
		if section(field.Type) {
			keys = append(keys, keysOf(tableOf(field.Type), key+".")...)
		}
	}
	return keys
}

// fieldOf returns the type of a dotted key, or nil if there is no such key.
func fieldOf(shape reflect.Type, key []string) reflect.Type {
	for field := range shape.Fields() {
		if field.Tag.Get("toml") != key[0] {
			continue
		}
		if len(key) == 1 {
			return field.Type
		}
		if section(field.Type) {
			return fieldOf(tableOf(field.Type), key[1:])
		}
		if field.Type.Kind() == reflect.Map && len(key) == 2 {
			return field.Type.Elem()
		}
	}
	return nil
}

// unknownKey returns the message for an unknown key. It suggests the key with the most
// similar spelling or one of the same name in another section, and otherwise lists the
// keys of the section.
func unknownKey(key string, known []string) string {
	split := func(k string) (section, last string) {
		dot := strings.LastIndex(k, ".") + 1
		return k[:dot], k[dot:]
	}
	section, last := split(key)
	nearest := slices.MinFunc(known, func(a, b string) int { return cmp.Compare(api.Distance(key, a), api.Distance(key, b)) })
	if at := slices.IndexFunc(known, func(k string) bool { return strings.EqualFold(k, key) }); at >= 0 {
		nearest = known[at]
	}
	if api.Distance(key, nearest) > max(2, len(last)/2) && !strings.EqualFold(key, nearest) {
		var beside []string
		for _, k := range known {
			switch s, l := split(k); {
			case l == last && s != section:
				return fmt.Sprintf("unknown key %q; the nearest right key is %q", key, k)
			case s == section:
				beside = append(beside, k)
			}
		}
		return fmt.Sprintf("unknown key %q; the right keys there are %s", key, strings.Join(beside, ", "))
	}
	return fmt.Sprintf("unknown key %q; the nearest right key is %q", key, nearest)
}

// pathIn resolves a path in a configuration file: "~/" is the user's home, and a relative
// path is relative to the file's folder.
func pathIn(file, path string) string {
	path = pathHere(path)
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(file), path)
}

// pathHere resolves "~/" in a path that no shell has resolved, such as KITH_HOME in a
// unit or an .env file, or --data=~/hub.
func pathHere(path string) string {
	rest, ok := strings.CutPrefix(path, "~")
	if home, err := os.UserHomeDir(); err == nil && ok && (rest == "" || os.IsPathSeparator(rest[0])) {
		return filepath.Join(home, rest)
	}
	return path
}
