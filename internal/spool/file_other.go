//go:build !windows

package spool

import "os"

// create makes an empty file that only this process knows: its name is taken
// away at once, so nothing is left behind, whatever becomes of the process.
func create(folder string) (*os.File, error) {
	f, err := os.CreateTemp(folder, prefix)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
