package commitlog

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// addressed begins the id of a producer whose batches one group alone receives. With the
// digests behind it the id is longer than that of a publisher may be.
const addressed = "$redriven/"

// Address stands for the one group that receives a batch. The zero Address is every group.
type Address string

// AddressOf is the address of a group.
func AddressOf(group string) Address { return Address(digest(group)) }

// Redriven is the producer of a message that is put back for one group. A partition stores
// each dead letter once, whenever it is repeated.
func Redriven(group, deadLetter string) Producer {
	return Producer{ID: addressed + digest(group) + "/" + digest(deadLetter), Number: 1}
}

// Address returns the recipient of the batch.
func (b *Batch) Address() Address { return b.Producer.Address() }

// Address returns the recipient of the producer's appends.
func (p Producer) Address() Address {
	rest, ok := strings.CutPrefix(p.ID, addressed)
	if !ok {
		return ""
	}
	group, _, _ := strings.Cut(rest, "/")
	return Address(group)
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}
