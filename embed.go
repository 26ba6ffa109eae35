// Package kith holds the install script and the version, so that a hub serves the script
// of its own version.
package kith

import (
	_ "embed"
	"strings"
)

// InstallScript is install.sh.
//
//go:embed install.sh
var InstallScript []byte

//go:embed VERSION
var version string

// Version returns the release that these sources become: the file VERSION.
func Version() string { return strings.TrimSpace(version) }
