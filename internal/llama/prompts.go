package llama

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"filippo.io/age"
)

const (
	// minStored is the minimum number of tokens of a sequence that is stored. Fewer are
	// computed again in a short time.
	minStored = 256
	// maxStoredHead limits the head of a stored prompt, in bytes: its tokens and more.
	maxStoredHead = 16 << 20
	storedSuffix  = ".prompt"
)

// promptStore keeps computed prompts on disk while their weights are not in memory: the
// tokens of a sequence and llama.cpp's state of it. The files are encrypted. It is safe
// for concurrent use.
type promptStore struct {
	dir      string
	limit    int64 // bytes of all files
	identity *age.X25519Identity
	mu       sync.Mutex
}

// storedPrompt is a file of a promptStore.
type storedPrompt struct {
	path   string
	caller string
	tokens []token
}

// storedHead is the beginning of a file, after its length in 4 bytes. The state follows.
type storedHead struct {
	Caller string `json:"caller"`
	Tokens []byte `json:"tokens"` // 4 bytes each, little-endian
}

// NewPromptKey returns a new key for Config.PromptKey.
func NewPromptKey() (string, error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return "", err
	}
	return identity.String(), nil
}

// IsPromptKey reports whether key was made by NewPromptKey.
func IsPromptKey(key string) bool {
	_, err := age.ParseX25519Identity(key)
	return err == nil
}

// newPromptStore returns the store in dir, or nil if the limit is 0. Then it deletes what
// is there.
func newPromptStore(dir string, limit int64, key string) (*promptStore, error) {
	if limit <= 0 {
		return nil, os.RemoveAll(dir)
	}
	identity, err := age.ParseX25519Identity(key)
	if err != nil {
		return nil, fmt.Errorf("cannot use the key of stored prompts: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &promptStore{dir: dir, limit: limit, identity: identity}, nil
}

// storedPrefix returns the beginning of the names of a model's files. It differs after a
// change of the model's file or of llama.cpp.
func storedPrefix(file ModelFile) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{file.ID, file.Path, file.Version, libraryVersion}, "\x00")))
	return hex.EncodeToString(sum[:12]) + "-"
}

// files returns the files in the store, newest first. mu must be held.
func (p *promptStore) files() []fs.FileInfo {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil
	}
	var files []fs.FileInfo
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	return files
}

// keepOnly deletes the files of other models, and those that were not completed.
func (p *promptStore) keepOnly(models []ModelFile) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, file := range p.files() {
		of := func(m ModelFile) bool { return strings.HasPrefix(file.Name(), storedPrefix(m)) }
		if !slices.ContainsFunc(models, of) || filepath.Ext(file.Name()) != storedSuffix {
			_ = os.Remove(filepath.Join(p.dir, file.Name()))
		}
	}
}

// list returns the stored prompts of a model. It deletes files that it cannot read.
func (p *promptStore) list(prefix string) []storedPrompt {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []storedPrompt
	for _, info := range p.files() {
		if !strings.HasPrefix(info.Name(), prefix) {
			continue
		}
		s := storedPrompt{path: filepath.Join(p.dir, info.Name())}
		if err := p.read(&s, nil); err != nil {
			_ = os.Remove(s.path)
			continue
		}
		list = append(list, s)
	}
	return list
}

// read reads the head of a file, and passes the rest to state unless it is nil.
func (p *promptStore) read(s *storedPrompt, state func(io.Reader) error) error {
	file, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer file.Close()
	in, err := age.Decrypt(file, p.identity)
	if err != nil {
		return err
	}
	var size [4]byte
	if _, err := io.ReadFull(in, size[:]); err != nil {
		return err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > maxStoredHead {
		return errors.New("the head is too large")
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(in, text); err != nil {
		return err
	}
	var head storedHead
	if err := json.Unmarshal(text, &head); err != nil {
		return err
	}
	s.caller, s.tokens = head.Caller, make([]token, len(head.Tokens)/4)
	for i := range s.tokens {
		s.tokens[i] = token(binary.LittleEndian.Uint32(head.Tokens[4*i:]))
	}
	if state == nil {
		return nil
	}
	return state(in)
}

// load returns the state of a stored prompt.
func (p *promptStore) load(s storedPrompt) (state []byte, err error) {
	err = p.read(&s, func(in io.Reader) error {
		state, err = io.ReadAll(in)
		return err
	})
	return state, err
}

// save stores a sequence under a new name with the prefix. It deletes the oldest files if
// there is no room.
func (p *promptStore) save(prefix, caller string, tokens []token, state []byte) (_ storedPrompt, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.makeRoom(int64(len(state)) + 8*int64(len(tokens))); err != nil {
		return storedPrompt{}, err
	}
	s := storedPrompt{caller: caller, tokens: slices.Clone(tokens)}
	file, err := os.CreateTemp(p.dir, prefix+"*") // has mode 0600
	if err != nil {
		return s, err
	}
	defer func() {
		err = errors.Join(err, file.Close())
		if err == nil {
			s.path = filepath.Join(p.dir, prefix+rand.Text()+storedSuffix)
			err = os.Rename(file.Name(), s.path)
		}
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	out, err := age.Encrypt(file, p.identity.Recipient())
	if err != nil {
		return s, err
	}
	raw := make([]byte, 0, 4*len(tokens))
	for _, t := range tokens {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(t))
	}
	head, err := json.Marshal(storedHead{caller, raw})
	if err != nil {
		return s, err
	}
	for _, part := range [][]byte{binary.LittleEndian.AppendUint32(nil, uint32(len(head))), head, state} {
		if _, err := out.Write(part); err != nil {
			return s, err
		}
	}
	return s, out.Close()
}

// makeRoom deletes the oldest files until there is room for more bytes. mu must be held.
func (p *promptStore) makeRoom(more int64) error {
	if more > p.limit {
		return fmt.Errorf("%d MiB are more than may be kept", more>>20)
	}
	left := p.limit - more
	for _, file := range p.files() {
		if left -= file.Size(); left < 0 {
			_ = os.Remove(filepath.Join(p.dir, file.Name()))
		}
	}
	return nil
}

// remove deletes a file of the store.
func (s storedPrompt) remove() {
	if s.path != "" {
		_ = os.Remove(s.path)
	}
}

// longest returns the index of the caller's stored prompt with the most tokens in common
// with the prompt, and their number; -1 if there is none.
func longestStored(list []storedPrompt, caller string, prompt []token) (best, common int) {
	best = -1
	for i, s := range list {
		if n := commonPrefix(s.tokens, prompt); s.caller == caller && n > common {
			best, common = i, n
		}
	}
	return best, common
}

// keepPrompts stores the sequences of all slots. It is called before the weights are
// freed.
func (r *runner) keepPrompts() {
	if r.prompts == nil || !r.loaded.restores {
		return
	}
	for i := range r.slots {
		s := &r.slots[i]
		if len(s.tokens) < minStored {
			continue
		}
		size := r.lib.llama_state_seq_get_size(r.loaded.chat, int32(i))
		if free, known := r.free(); size == 0 || known && uint64(size) > free/2 {
			continue
		}
		state := make([]byte, size)
		n := r.lib.llama_state_seq_get_data(r.loaded.chat, &state[0], size, int32(i))
		if n == 0 || n > size {
			continue
		}
		if _, err := r.prompts.save(r.storedPrefix, s.caller, s.tokens, state[:n]); err == nil {
			s.stored.remove() // an earlier state of the conversation
		}
	}
}

// restore puts the stored prompt with the most tokens in common with the job's prompt in
// the slot. It reports whether it did. A file is kept until the slot is stored again.
func (r *runner) restore(slot int, j *job) bool {
	best, _ := longestStored(r.stored, j.caller, j.prompt)
	if best < 0 {
		return false
	}
	from := r.stored[best]
	r.stored = slices.Delete(r.stored, best, best+1)
	state, err := r.prompts.load(from)
	if err != nil || len(state) == 0 || r.lib.llama_state_seq_set_data(r.loaded.chat, &state[0], uintptr(len(state)), int32(slot)) == 0 {
		r.forget(slot)
		from.remove() // it is damaged, or of another library
		return false
	}
	s := &r.slots[slot]
	s.tokens, s.stored = from.tokens, from
	return true
}
