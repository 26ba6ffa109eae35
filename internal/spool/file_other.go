//go:build !windows

package spool

import "os"

// create creates an empty file and removes its name at once, so that the file does not
// outlive the process.
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
