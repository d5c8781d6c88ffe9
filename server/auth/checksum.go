package auth

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// lineChecksum begins a line before each block that this package writes. Without it a changed bit
// makes another key, which is as good as the first one, and refuses all tokens. It is no header of
// the block: OpenSSL reads no key with headers.
const lineChecksum = "Checksum: "

var errChecksum = errors.New("a key in it is damaged: its checksum is another one")

// writeBlock writes a block after its checksum.
func writeBlock(w io.Writer, b *pem.Block) error {
	if _, err := fmt.Fprintf(w, "%s%s\n", lineChecksum, checksum(b)); err != nil {
		return err
	}
	return pem.Encode(w, b)
}

// compareChecksum compares a block with the checksum in the text before it. Those that other
// programs made have none.
func compareChecksum(b *pem.Block, before []byte) error {
	for line := range bytes.Lines(before) {
		if sum, ok := bytes.CutPrefix(line, []byte(lineChecksum)); ok && string(bytes.TrimSpace(sum)) != checksum(b) {
			return errChecksum
		}
	}
	return nil
}

func checksum(b *pem.Block) string {
	h := sha256.New()
	fmt.Fprintln(h, b.Type)
	for _, name := range slices.Sorted(maps.Keys(b.Headers)) {
		fmt.Fprintf(h, "%s: %s\n", name, b.Headers[name])
	}
	h.Write(b.Bytes)
	return hex.EncodeToString(h.Sum(nil)[:8])
}
