// Package ticket gives users tickets for one stream each. A browser's EventSource can send no header, and an access
// token in an address would stand in logs and histories for as long as it is good. A ticket is good once, for half a
// minute.
//
// A ticket is the caller's access token, sealed with a key that all processes of an installation have. So making one
// writes nothing, and one that was not made here costs no read. A row records that a ticket was used.
//
// It owns the form of tickets and that row. Package authapi decides who gets a ticket, and
// package auth what its token allows.
//
// Concurrency: a Service is safe for concurrent use.
package ticket

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/parley-chat/parley/server/chat/commit"
	"github.com/parley-chat/parley/server/infra/wait"
	"github.com/parley-chat/parley/server/store"
	"github.com/parley-chat/parley/server/store/table/people"
)

// KeySize is the size of the key, in bytes.
const KeySize = 32

// Lifetime is how long a ticket is good.
const Lifetime = 30 * time.Second

// skew is how far the clocks of processes may be apart: the row of a used ticket stays for longer.
const skew = 5 * time.Minute

// maxTicket bounds a ticket, in bytes of its text. That of an access token of 8 KiB, the longest, is shorter.
const maxTicket = 16 << 10

// Service makes and takes tickets.
type Service struct {
	aead  cipher.AEAD
	store *commit.Committer
	clock func() time.Time
}

// New makes a Service with a key of KeySize bytes, the same in all processes.
func New(s store.Store, key []byte, clock func() time.Time) (*Service, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("ticket: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("ticket: %w", err)
	}
	return &Service{aead, commit.New(commit.Config{Store: s, Clock: clock, Sleep: wait.For}), clock}, nil
}

// Issue makes a ticket for an access token, and says until when it is good.
func (s *Service) Issue(token string) (ticket string, expires time.Time) {
	expires = s.clock().Add(Lifetime)
	plain := binary.BigEndian.AppendUint64(nil, uint64(expires.UnixMilli()))
	nonce := make([]byte, s.aead.NonceSize())
	_, _ = rand.Read(nonce) // which never fails
	sealed := s.aead.Seal(nonce, nonce, append(plain, token...), nil)
	return base64.RawURLEncoding.EncodeToString(sealed), expires
}

// Redeem returns the access token of a ticket, which is used up; empty if the ticket was not made here, was used, or
// is too old. Of several calls with one ticket at most one gets the token; a call whose outcome is unknown uses the
// ticket up, too. Errors are the store's.
func (s *Service) Redeem(ctx context.Context, ticket string) (token string, err error) {
	token, nonce, expires := s.open(ticket)
	if !s.clock().Before(expires) {
		return "", nil
	}
	used := people.UsedTicket{ExpiresAt: expires.Add(skew).Unix()}
	err = s.store.Repeat(ctx, store.Write{Op: store.OpPut, Key: people.UsedTicketKey(hex.EncodeToString(nonce)),
		Item: used.Item(), Cond: store.Absent(), Name: "ticket"})
	if err != nil {
		token = ""
	}
	if commit.ConditionError(err) != nil {
		err = nil // the ticket was used before
	}
	return token, err
}

// open returns what a ticket has, and zero values for one that was not made here.
func (s *Service) open(ticket string) (token string, nonce []byte, expires time.Time) {
	if len(ticket) > maxTicket {
		return "", nil, time.Time{}
	}
	sealed, err := base64.RawURLEncoding.DecodeString(ticket)
	if err != nil || len(sealed) < s.aead.NonceSize() {
		return "", nil, time.Time{}
	}
	nonce, box := sealed[:s.aead.NonceSize()], sealed[s.aead.NonceSize():]
	plain, err := s.aead.Open(nil, nonce, box, nil)
	if err != nil || len(plain) < 8 {
		return "", nil, time.Time{}
	}
	return string(plain[8:]), nonce, time.UnixMilli(int64(binary.BigEndian.Uint64(plain)))
}
