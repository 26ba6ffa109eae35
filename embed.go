// Package kith holds the install script, so that a hub serves that of its own version.
package kith

import _ "embed"

// InstallScript is install.sh.
//
//go:embed install.sh
var InstallScript []byte
