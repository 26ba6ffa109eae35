//go:build !llama || !linux || !(amd64 || arm64)

package llama

import "embed"

// embedded is empty: this build carries no libraries and looks for them beside
// the binary.
var embedded embed.FS

const embeddedDir = "lib"
