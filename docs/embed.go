// Package docs holds the pages of the documentation, so that a hub shows those of its
// own version.
package docs

import "embed"

// Files are the pages and their pictures.
//
//go:embed *.md */*.md pictures/*
var Files embed.FS
