// Package deploy holds what installs and runs Parley: the engines for people with
// Docker, Terraform, and the documents for operators. It has no code; its tests keep
// the files in step with the rest of the repository.
package deploy

import "embed"

// Files are the documents for operators, as Markdown.
//
//go:embed README.md capacity.md runbooks/*.md
var Files embed.FS
