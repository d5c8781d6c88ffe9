package auth

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// After a theft of the file nothing of it is good any more: running processes end the tokens at
// once and keep their derived secrets, those that start get others, and the file has nothing of
// what was stolen.
func TestRotateRoot(t *testing.T) {
	now := testTime
	running := newProcess(t, nil, &now)
	stolen := newProcess(t, running.text(t), &now)
	before := running.key.Derive("links", 32)
	secrets := [][]byte{before}
	for round := range 3 {
		old := issue(t, stolen.key, "alice")
		made, err := RotateRoot(running.path, now)
		if err != nil {
			t.Fatal(err)
		}
		if changed, err := running.key.Reload(); err != nil || !changed {
			t.Fatal(round, changed, err)
		}
		if _, err := running.gate.Verify(old); !errors.Is(err, ErrOtherKey) {
			t.Errorf("round %d: %v", round, err)
		}
		if !bytes.Equal(running.key.Derive("links", 32), before) {
			t.Error("a process changed its secrets while it ran")
		}
		started := newProcess(t, running.text(t), &now)
		if keys := started.key.Keys(now); len(keys) != 1 || keys[0].ID != made.ID || !keys[0].Signing {
			t.Errorf("round %d: %+v", round, keys)
		}
		if _, err := running.gate.Verify(issue(t, started.key, "alice")); err != nil {
			t.Errorf("round %d: a token of a process that was started again: %v", round, err)
		}
		for _, secret := range secrets {
			if bytes.Equal(started.key.Derive("links", 32), secret) {
				t.Errorf("round %d: the secrets are the same", round)
			}
		}
		secrets = append(secrets, started.key.Derive("links", 32))
		stolen = started
	}
	first, _ := pem.Decode(stolen.text(t))
	if first.Type != rootType || strings.Count(string(stolen.text(t)), "BEGIN") != 2 {
		t.Errorf("%s", stolen.text(t))
	}
	// Other rotations leave the root secret alone, and no key has to stay for it.
	for range 3 {
		if _, err := Rotate(stolen.path, now, time.Minute); err != nil {
			t.Fatal(err)
		}
		now = now.Add(2 * MaxTTL)
	}
	again := stolen.load(t)
	if !bytes.Equal(again.Derive("links", 32), secrets[len(secrets)-1]) || len(again.Keys(now)) != 2 {
		t.Errorf("%+v", again.Keys(now))
	}
}

// A root secret that does not follow on the one of the start is not taken over, nor is a file
// with two, or one that is cut.
func TestOtherRoots(t *testing.T) {
	now := testTime
	p, other := newProcess(t, nil, &now), newProcess(t, nil, &now)
	for _, path := range []string{p.path, other.path} {
		if _, err := RotateRoot(path, now); err != nil {
			t.Fatal(err)
		}
	}
	own, block := p.text(t), []byte(nil)
	p.load(t)
	if first, _ := pem.Decode(own); first != nil {
		block = pem.EncodeToMemory(first)
		first.Bytes = first.Bytes[1:]
		p.keeps(t, append(pem.EncodeToMemory(first), own...))
	}
	for _, text := range [][]byte{other.text(t), append(bytes.Clone(block), own...), own[:40], block} {
		p.keeps(t, text)
	}
	p.give(t, own)
}

// keeps demands that a text of the file is not taken over.
func (p *process) keeps(t *testing.T, text []byte) {
	t.Helper()
	if err := os.WriteFile(p.path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if changed, err := p.key.Reload(); err == nil || changed || strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: %v, %v", text, changed, err)
	}
}

// Whoever watches the file is notified that a start is needed, and what is open ends.
func TestWatchedRoot(t *testing.T) {
	now := time.Now()
	p := newProcess(t, nil, &now)
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		ended := 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			w := &KeyWatch{Key: p.key, Logger: slog.New(slog.NewTextHandler(&logged, nil)), Ended: func() { ended++ }}
			if err := w.Run(ctx, func() {}); err != nil {
				t.Error(err)
			}
		}()
		if _, err := RotateRoot(p.path, time.Now()); err != nil {
			t.Error(err)
		}
		time.Sleep(3 * WatchEvery)
		cancel()
		<-done
		if ended != 1 || strings.Count(logged.String(), "started again") != 1 {
			t.Errorf("ended %d times\n%s", ended, &logged)
		}
	})
}
