package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// headerChecksum is in each block that this package writes. Without it a changed bit makes another
// key, which is as good as the first one, and refuses all tokens.
const headerChecksum = "Checksum"

var errChecksum = errors.New("a key in it is damaged: its checksum is another one")

// sealed is a block with its checksum.
func sealed(b *pem.Block) *pem.Block {
	headers := map[string]string{headerChecksum: checksum(b)}
	maps.Copy(headers, b.Headers)
	return &pem.Block{Type: b.Type, Headers: headers, Bytes: b.Bytes}
}

// compareChecksum compares a block with its checksum. Those that other programs made have none.
func compareChecksum(b *pem.Block) error {
	if sum, ok := b.Headers[headerChecksum]; ok && sum != checksum(b) {
		return errChecksum
	}
	return nil
}

// checksum is that of all of a block but its checksum.
func checksum(b *pem.Block) string {
	h := sha256.New()
	fmt.Fprintln(h, b.Type)
	for _, name := range slices.Sorted(maps.Keys(b.Headers)) {
		if name != headerChecksum {
			fmt.Fprintf(h, "%s: %s\n", name, b.Headers[name])
		}
	}
	h.Write(b.Bytes)
	return hex.EncodeToString(h.Sum(nil)[:8])
}
