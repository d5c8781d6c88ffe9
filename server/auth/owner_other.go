//go:build !unix

package auth

import "os"

// giveTo leaves a file to the user that makes it: it has the permissions of its directory.
func giveTo(*os.File, os.FileInfo) error { return nil }
