package host

import (
	"bytes"
	"fmt"
	"os"
)

// ReadText reads a file that a person or this program wrote. It removes a byte order
// mark, which some editors add. It refuses empty files, which result from a full disk or
// a power cut, and files in UTF-16.
func ReadText(name string) ([]byte, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(text, []byte("\xff\xfe")), bytes.HasPrefix(text, []byte("\xfe\xff")):
		return nil, fmt.Errorf("%s is in UTF-16, as Windows' Notepad and PowerShell's > write it: save it as UTF-8", name)
	case len(text) == 0 && isRegular(name):
		return nil, fmt.Errorf("%s is empty, as a full disk or a power cut leaves it: restore it, or remove it", name)
	}
	return bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")), nil
}

// isRegular reports whether name is a regular file; /dev/null is empty on purpose.
func isRegular(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}
