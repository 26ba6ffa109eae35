//go:build !llama || !linux || !(amd64 || arm64)

package llama

import "embed"

// embedded is empty: the libraries of this build are beside the binary.
var embedded embed.FS

const embeddedDir = "lib"
