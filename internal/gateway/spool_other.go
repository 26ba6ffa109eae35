//go:build !windows

package gateway

import "os"

// spool is an empty file that only this process knows: its name is taken away
// at once, so nothing is left behind, whatever becomes of the process.
func spool() (*os.File, error) {
	f, err := os.CreateTemp("", "kith-sound-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
