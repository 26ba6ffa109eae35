package seal

import (
	"crypto/rand"
	_ "embed"
	"fmt"
	"slices"
	"strings"
)

const (
	wordsSize  = 11 // bytes: 8 words of 11 bits
	wordsCount = 8
	wordBits   = 11
)

// Words are 88 bits that people read, compare and type as 8 words of the English list of
// BIP-39. In that list no two words begin with the same four characters.
type Words [wordsSize]byte

//go:embed words.txt
var wordsText string

var wordList = strings.Fields(wordsText) // sorted

// NewWords returns random words.
func NewWords() (w Words) {
	rand.Read(w[:])
	return w
}

// String returns the words with spaces between them.
func (w Words) String() string {
	list := make([]string, wordsCount)
	for i := range list {
		n := 0
		for bit := i * wordBits; bit < (i+1)*wordBits; bit++ {
			n = n<<1 | int(w[bit/8]>>(7-bit%8)&1)
		}
		list[i] = wordList[n]
	}
	return strings.Join(list, " ")
}

// ParseWords parses words as people type them: in any case, with spaces or commas between
// them, each at least by its first four characters.
func ParseWords(s string) (w Words, err error) {
	fields := strings.FieldsFunc(strings.ToLower(s), func(r rune) bool { return r < 'a' || r > 'z' })
	if len(fields) != wordsCount {
		return w, fmt.Errorf("there must be %d words, not %d", wordsCount, len(fields))
	}
	for i, field := range fields {
		n, found := slices.BinarySearch(wordList, field)
		if !found && (len(field) < 4 || n == len(wordList) || !strings.HasPrefix(wordList[n], field)) {
			return w, fmt.Errorf("word %d, %q, is not in the list%s", i+1, field, wordLike(field, n))
		}
		for k := range wordBits {
			bit := i*wordBits + k
			w[bit/8] |= byte(n>>(wordBits-1-k)&1) << (7 - bit%8)
		}
	}
	return w, nil
}

// wordLike returns a hint at the word of the list that begins as the text does, or "". The
// text would be in the list at n.
func wordLike(text string, n int) string {
	for _, word := range wordList[max(0, n-1):min(n+1, len(wordList))] {
		if len(text) >= 3 && strings.HasPrefix(word, text[:3]) {
			return fmt.Sprintf(", did you mean %q?", word)
		}
	}
	return ""
}
