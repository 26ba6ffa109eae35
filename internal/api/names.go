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

// MaxName is the maximum length of a name, in bytes.
const MaxName = 64

// CheckName returns nil if a new member, machine or group may have this name. Names
// follow the rules for labels, and also: they are neither "." nor "..", they are in NFKC
// form, they use only one script, and they contain nothing invisible. That way no name
// can be written in two ways that look alike. Names from before this rule stay valid.
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

// reserved are the likenesses of the names of the service and its roles.
var reserved = func() (out []string) {
	for _, word := range []string{
		"abuse", "admin", "administrator", "help", "helpdesk", "hub", "kith", "moderator", "official", "operator", "postmaster",
		"root", "security", "service", "staff", "superuser", "support", "sysadmin", "system", "webmaster",
	} {
		out = append(out, likenesses(word)...)
	}
	return out
}()

// likenesses returns what a word looks like, even to an inattentive reader: accents are
// ignored, and "i" equals "l".
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

// onlyReserved reports whether a likeness consists only of reserved ones.
func onlyReserved(likeness string) bool {
	return likeness == "" || slices.ContainsFunc(reserved, func(word string) bool {
		rest, found := strings.CutPrefix(likeness, word)
		return found && onlyReserved(rest)
	})
}

// CheckChosenName is CheckName for names that members choose for themselves or their
// groups and that other members see. It also rejects names of the service and its roles,
// even with trailing digits ("KithSupport", "admin2"). The operator may assign those.
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

// hides reports whether a name contains something that readers do not see: letters
// without a shape, such as the fillers of Hangul, or repeated spaces, which a page shows
// as one.
func hides(name string) bool {
	return strings.Contains(name, "  ") ||
		strings.ContainsFunc(name, func(c rune) bool {
			return unicode.IsLetter(c) && unicode.Is(unicode.Other_Default_Ignorable_Code_Point, c)
		})
}

// checkLabel returns nil if a member may use this name for something that only the member
// sees, such as an API key: 1 to 64 bytes of letters, digits or any of "-_. ", without a
// space at either end.
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

// togethers are the scripts that a single language combines. All other scripts must be
// used alone.
var togethers = [][]*unicode.RangeTable{
	{unicode.Han, unicode.Hiragana, unicode.Katakana},
	{unicode.Han, unicode.Hangul},
	{unicode.Han, unicode.Bopomofo},
}

// oneScript reports whether all characters of a name belong to one script, ignoring
// characters that are common to all scripts.
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
