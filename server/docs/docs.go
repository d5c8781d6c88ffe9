// Package docs holds the documents for those who use Parley, as Markdown. It has no code.
package docs

import "embed"

// Files are the documents.
//
//go:embed *.md
var Files embed.FS
