package clients_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// goProgram is the text around a block of Go on the page.
var goProgram = map[string][2]string{
	"openai": {`package main

import ("context"; "fmt"; "os"; "github.com/openai/openai-go/v3"; "github.com/openai/openai-go/v3/option")

func main() {
ctx := context.Background()
`, `
fmt.Println(answer.Choices[0].Message.Content, err)
}`},
	"anthropic": {`package main

import ("context"; "fmt"; "os"; "github.com/anthropics/anthropic-sdk-go"; "github.com/anthropics/anthropic-sdk-go/option")

func main() {
ctx := context.Background()
`, `
fmt.Println(answer.Content[0].Text, err)
}`},
}

// page runs the programs of the members' page as they are, with
// this network's hub and model; e2e/agents does so with the rest of the page.
func (n *libraries) page(t *testing.T) {
	text := assert.Value(os.ReadFile("../../docs/clients.md"))(t)
	forPrograms, _, _ := strings.Cut(string(text), "\n## Claude Code\n")
	ran := 0
	for _, section := range strings.Split(forPrograms, "\n## ")[1:] {
		heading, rest, _ := strings.Cut(section, "\n")
		for {
			var block string
			if _, block, _ = strings.Cut(rest, "```"); block == "" {
				break
			}
			block, rest, _ = strings.Cut(block, "```")
			language, code, _ := strings.Cut(block, "\n")
			code = strings.NewReplacer("https://hub.example", n.hub, "llama3", "tiny").Replace(code)
			ran++
			t.Run(heading, func(t *testing.T) { n.runBlock(t, language, code) })
		}
	}
	assert.Equal(t, ran, 10, "blocks were found")
}

// runBlock runs one block; all of them ask for the capital of France.
func (n *libraries) runBlock(t *testing.T, language, code string) {
	var cmd *exec.Cmd
	switch language {
	case "sh":
		cmd = exec.CommandContext(t.Context(), "sh", "-ec", code)
	case "js":
		cmd = exec.CommandContext(t.Context(), "node", "--input-type=module", "--eval", code)
	case "go":
		library, _, _ := strings.Cut(strings.TrimPrefix(code, "client := "), ".")
		around := goProgram[library]
		file := filepath.Join(t.TempDir(), "main.go")
		assert.OK(t, os.WriteFile(file, []byte(around[0]+code+around[1]), 0o600))
		cmd = exec.CommandContext(t.Context(), "go", "run", file)
	}
	cmd.Env = append(os.Environ(), "KITH_API_KEY="+n.keys["ada"])
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "Paris") {
		t.Errorf("%v\n%s", err, out)
	}
}
