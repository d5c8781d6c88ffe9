//go:build !unix

package auth

import "os"

// giveTo leaves a file to who makes it: it has the rights of its directory.
func giveTo(*os.File, os.FileInfo) error { return nil }
