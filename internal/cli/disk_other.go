//go:build !linux && !darwin

package cli

import "errors"

// freeSpace is not read on this system.
func freeSpace(string) (uint64, error) { return 0, errors.ErrUnsupported }
