//go:build llama

package llama

import "embed"

// embedded holds the libraries of this platform: NAME.gz and their SHA256SUMS.
//
//go:embed lib/linux-x64
var embedded embed.FS

const embeddedDir = "lib/linux-x64"
