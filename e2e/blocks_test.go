package e2e_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"go/parser"
	"go/token"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/cli"
)

// block is a fenced block of a page. A comment before it, <!-- not run: REASON -->, keeps
// a block from being run; <!-- as NAME --> runs it as that member.
type block struct {
	language, text string
	line           int
	notRun         string
	as             string
}

var (
	fence   = regexp.MustCompile("^( *)```(\\w*)$")
	comment = regexp.MustCompile(`^ *<!-- (not run|as):? (.*) -->$`)
)

// blocksOf returns the blocks of a page in their order.
func blocksOf(page string) []block {
	var out []block
	var next block
	open, indent := false, ""
	for i, line := range strings.Split(page, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case open && m == nil:
			next.text += strings.TrimPrefix(line, indent) + "\n"
		case open:
			out = append(out, next)
			open, next = false, block{}
		case m != nil:
			open, indent, next.language, next.line = true, m[1], m[2], i+1
		default:
			mark := comment.FindStringSubmatch(line)
			switch {
			case mark == nil && line != "":
				next = block{}
			case mark != nil && mark[1] == "as":
				next.as = mark[2]
			case mark != nil:
				next.notRun = mark[2]
			}
		}
	}
	return out
}

// pages are the pages for members and operators, by their paths in the repository. The
// decisions report what was, and are not among them.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/start/*.md", "../docs/operate/*.md", "../docs/spec/*.md", "../deploy/*/*.md", "../deploy/helm/*/*.md"} {
		files := assert.Value(filepath.Glob(pattern))(t)
		for _, file := range files {
			text := assert.Value(os.ReadFile(file))(t)
			if name := filepath.ToSlash(strings.TrimPrefix(file, "../")); name != "CHANGELOG.md" {
				out[name] = string(text)
			}
		}
	}
	return out
}

// TestBlocks reads every block of every page with the reader of its language. The blocks
// of commands are run by TestPages.
func TestBlocks(t *testing.T) {
	binary := builtBinary(t)
	for name, page := range pages(t) {
		for _, b := range blocksOf(page) {
			if err := b.check(t, binary); err != nil {
				t.Errorf("%s:%d: %v\n%s", name, b.line, err, b.text)
			}
		}
	}
}

// check reads a block with the reader of its language.
func (b block) check(t *testing.T, binary string) error {
	switch b.language {
	case "sh":
		return command(b.text, "sh", "-n")
	case "js":
		return command(b.text, "node", "--check", "--input-type=module", "-")
	case "json":
		var any any
		return json.Unmarshal([]byte(b.text), &any)
	case "go":
		_, err := parser.ParseFile(token.NewFileSet(), "block.go", "package p\nfunc f() {\n"+b.text+"}\n", 0)
		return err
	case "toml":
		return b.checkConfiguration(t, binary)
	case "", "text", "sql", "http":
		return nil
	}
	return fmt.Errorf("no reader for a block of %q", b.language)
}

// command runs a command with the text on its standard input.
func command(text, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// pairFile is a file of a certificate or its key that a configuration names.
var pairFile = regexp.MustCompile(`(?m)^(certificate|key) = "(/[^"]+)"`)

// certificateIn makes a certificate and its key in a folder: the files certificate and key.
func certificateIn(t *testing.T, folder string) {
	t.Helper()
	key := assert.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"hub.example"}, NotAfter: time.Now().Add(time.Hour)}
	certificate := assert.Value(x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key))(t)
	private := assert.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	for name, block := range map[string]*pem.Block{"certificate": {Type: "CERTIFICATE", Bytes: certificate}, "key": {Type: "PRIVATE KEY", Bytes: private}} {
		assert.OK(t, os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(block), 0o600))
	}
}

// secretFile is a file that a configuration names.
var secretFile = regexp.MustCompile(`"file:(/[^"]+)"`)

// checkConfiguration has kith read a configuration, as a hub's and as a daemon's: one of
// the two has to take it. A block that is not run is not kith's.
func (b block) checkConfiguration(t *testing.T, binary string) error {
	if b.notRun != "" {
		return nil
	}
	home := t.TempDir()
	for _, m := range secretFile.FindAllStringSubmatch(b.text, -1) {
		file := filepath.Join(home, filepath.Base(m[1]))
		if err := os.WriteFile(file, []byte("postgres://kith:secret@localhost/kith\n"), 0o600); err != nil {
			return err
		}
		b.text = strings.ReplaceAll(b.text, m[1], file)
	}
	certificateIn(t, home)
	b.text = pairFile.ReplaceAllString(b.text, `$1 = "`+home+`/$1"`)
	var said []string
	for _, name := range []string{"hub.toml", "config.toml"} {
		file := filepath.Join(home, name)
		if err := os.WriteFile(file, []byte(b.text), 0o600); err != nil {
			return err
		}
		cmd := exec.Command(binary, "config", "check", file)
		cmd.Env = []string{"KITH_HOME=" + home, "HOME=" + home}
		out, err := cmd.CombinedOutput()
		if err == nil {
			return nil
		}
		said = append(said, string(out))
	}
	return fmt.Errorf("neither a hub nor a daemon takes it:\n%s", strings.Join(said, "\n"))
}

var (
	// span is inline code of kith's.
	span = regexp.MustCompile("`((?:sudo )?kith [^`\n]*)`")
	// inBlock is a command of kith's in a line of a block.
	inBlock = regexp.MustCompile(`(?:^|[|&;(]|sudo|-T hub-1|time) *((?:\S*/)?kith(?: (?:"[^"]*"|'[^']*'|[^|&;)#"'])*)?)`)
	word    = regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`)
)

// TestCommandsExist compares every command of kith on a page, in a block or in a
// sentence, with the commands that there are: its name, its flags, and in a block its
// arguments.
func TestCommandsExist(t *testing.T) {
	compared := 0
	for name, page := range pages(t) {
		blocks := blocksOf(page)
		prose := regexp.MustCompile("(?ms)^ *```.*?^ *```$").ReplaceAllString(page, "")
		for _, line := range strings.Split(prose, "\n") {
			if strings.HasPrefix(line, "    kith ") {
				t.Errorf("%s: put a command into a fenced block of sh, so that it is run: %s", name, line)
			}
			for _, m := range span.FindAllStringSubmatch(line, -1) {
				compared++
				if err := exists(strings.TrimPrefix(m[1], "sudo "), false); err != nil {
					t.Errorf("%s: `%s`: %v", name, m[1], err)
				}
			}
		}
		for _, b := range blocks {
			if b.language != "sh" {
				continue
			}
			for _, line := range strings.Split(strings.ReplaceAll(b.text, "\\\n", " "), "\n") {
				for _, m := range inBlock.FindAllStringSubmatch(line, -1) {
					compared++
					if err := exists(m[1], true); err != nil {
						t.Errorf("%s:%d: %s: %v", name, b.line, m[1], err)
					}
				}
			}
		}
	}
	assert.That(t, compared >= 150, compared, "commands were found, which is too few")
}

// exists reports an error unless kith has the command and its flags; in full, it also
// has to have the right number of arguments.
func exists(line string, full bool) error {
	words := word.FindAllString(line, -1)[1:]
	for i, w := range words {
		words[i] = strings.Trim(w, `"'`)
	}
	root := cli.Commands()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd(words...)
	cmd, rest, err := root.Find(words)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	if err := cmd.ParseFlags(rest); err != nil && (full || !strings.Contains(err.Error(), "needs an argument")) {
		return err
	}
	args := cmd.Flags().Args()
	takes := cmd.Runnable() && cmd.ValidateArgs(args) == nil // such as kith trust NAME WORDS
	if cmd.HasSubCommands() && len(args) > 0 && !takes && !slices.Contains(names(cmd), strings.Split(args[0], "|")[0]) {
		return fmt.Errorf("%s has no command %q", cmd.CommandPath(), args[0])
	}
	if full {
		return cmd.ValidateArgs(args)
	}
	return nil
}

// names are the names of a command's commands.
func names(cmd *cobra.Command) []string {
	var out []string
	for _, c := range cmd.Commands() {
		out = append(append(out, c.Name()), c.Aliases...)
	}
	return out
}
