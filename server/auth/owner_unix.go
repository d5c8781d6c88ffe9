//go:build unix

package auth

import (
	"fmt"
	"os"
	"syscall"
)

// giveTo gives a file to the owner of another one.
func giveTo(f *os.File, of os.FileInfo) error {
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	have, ok := mine.Sys().(*syscall.Stat_t)
	want, known := of.Sys().(*syscall.Stat_t)
	if !ok || !known || have.Uid == want.Uid && have.Gid == want.Gid {
		return nil
	}
	if err := f.Chown(int(want.Uid), int(want.Gid)); err != nil {
		return fmt.Errorf("the file of keys is another user's, who must rotate it: %w", err)
	}
	return nil
}
