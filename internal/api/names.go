package api

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
)

// MaxName bounds a name, in bytes.
const MaxName = 64

// CheckName holds what a new member, machine or group may be called: what a label
// may, but neither "." nor "..", composed as Unicode's NFKC has it, of one script, and
// with nothing that cannot be seen, so that no name can be written in two ways that look
// alike; nil if it may. Names that were given before this rule stay valid.
func CheckName(name string) *fault.Fault {
	if hides(name) {
		return badName("a name has only what one can see, and not two spaces side by side; this is not: %+.80q", name)
	}
	if normal := norm.NFKC.String(name); normal != name && checkLabel(normal) == nil {
		return badName("a name is written in plain characters: write %q in place of %q", normal, name)
	}
	if f := checkLabel(name); f != nil {
		return f
	}
	switch {
	case name == "." || name == "..":
		return badName("%q cannot be a name, since in a path it is a folder: add another character", name)
	case !oneScript(name):
		return badName("a name has letters of one script, and %q mixes those of several, some of which look alike: write it in one", name)
	}
	return nil
}

// reserved are the names of the service and of its roles, by what they look like.
var reserved = func() (out []string) {
	for _, word := range []string{
		"abuse", "admin", "administrator", "help", "helpdesk", "hub", "kith", "moderator", "official", "operator", "postmaster",
		"root", "security", "service", "staff", "superuser", "support", "sysadmin", "system", "webmaster",
	} {
		out = append(out, likenesses(word)...)
	}
	return out
}()

// likenesses are what a word looks like, also to a reader who does not look closely: accents
// do not count, and "i" is "l".
func likenesses(word string) []string {
	bare := strings.Map(func(c rune) rune {
		if unicode.Is(unicode.Mn, c) {
			return -1
		}
		return c
	}, norm.NFD.String(word))
	skeletons := account.Skeletons(bare)
	for i, s := range skeletons {
		skeletons[i] = strings.ReplaceAll(s, "i", "l")
	}
	return skeletons
}

// onlyReserved reports whether a likeness consists of reserved ones.
func onlyReserved(likeness string) bool {
	return likeness == "" || slices.ContainsFunc(reserved, func(word string) bool {
		rest, found := strings.CutPrefix(likeness, word)
		return found && onlyReserved(rest)
	})
}

// CheckChosenName is CheckName for a name that a member chooses for themselves or for a
// group, which other members read: it is none of the service and its roles, also with
// digits at the end ("KithSupport", "admin2"). The operator may give those.
func CheckChosenName(name string) *fault.Fault {
	if f := CheckName(name); f != nil {
		return f
	}
	var word strings.Builder
	for part := range strings.FieldsFuncSeq(name, func(c rune) bool { return strings.ContainsRune("-_. ", c) }) {
		word.WriteString(strings.TrimRightFunc(part, unicode.IsDigit))
	}
	if word.Len() > 0 && slices.ContainsFunc(likenesses(word.String()), onlyReserved) {
		return badName("the name %q is for the service and its operator: choose another", name)
	}
	return nil
}

// hides reports whether a name has something that its readers do not see: letters without
// a form, as the fillers of Hangul are, or a space beside another one, of which a page
// shows one.
func hides(name string) bool {
	return strings.Contains(name, "  ") ||
		strings.ContainsFunc(name, func(c rune) bool {
			return unicode.IsLetter(c) && unicode.Is(unicode.Other_Default_Ignorable_Code_Point, c)
		})
}

// checkLabel holds what a member may call something that no one else reads, such as
// an API key: 1 to 64 bytes of letters, digits or any of "-_. ", no space at an end;
// nil if it may.
func checkLabel(name string) *fault.Fault {
	ok := name != "" && len(name) <= MaxName && utf8.ValidString(name) && name[0] != ' ' && name[len(name)-1] != ' '
	for _, c := range name {
		ok = ok && (unicode.IsLetter(c) || unicode.IsDigit(c) || c == '-' || c == '_' || c == '.' || c == ' ')
	}
	if !ok {
		return badName("a name is 1 to 64 bytes of letters, digits, spaces inside, or any of - _ .; this is not: %.80q", name)
	}
	return nil
}

func badName(format string, args ...any) *fault.Fault {
	return fault.New(fault.InvalidRequest, format, args...).WithParam("name")
}

// togethers are scripts that one language writes together; every other script is
// written alone.
var togethers = [][]*unicode.RangeTable{
	{unicode.Han, unicode.Hiragana, unicode.Katakana},
	{unicode.Han, unicode.Hangul},
	{unicode.Han, unicode.Bopomofo},
}

// oneScript reports whether all characters of a name can be of one script, those
// aside that every script has.
func oneScript(name string) bool {
	of := func(scripts ...*unicode.RangeTable) bool {
		for _, c := range name {
			if !unicode.In(c, unicode.Common, unicode.Inherited) && !unicode.In(c, scripts...) {
				return false
			}
		}
		return true
	}
	if of(unicode.Latin) {
		return true
	}
	for _, scripts := range togethers {
		if of(scripts...) {
			return true
		}
	}
	for _, script := range unicode.Scripts {
		if of(script) {
			return true
		}
	}
	return false
}
