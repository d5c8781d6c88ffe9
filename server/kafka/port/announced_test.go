package port_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/parley-chat/parley/server/kafka"
)

// raw is a connection that sends requests of any kind, whatever the broker announces.
type raw struct {
	net.Conn
	correlation int32
}

func newRaw(t *testing.T, b *kafka.Broker) *raw {
	t.Helper()
	c, err := net.Dial("tcp", b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return &raw{Conn: c}
}

// send sends a request and returns the answer behind its correlation id.
func (c *raw) send(req kmsg.Request) ([]byte, error) {
	c.correlation++
	if _, err := c.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("raw")).AppendRequest(nil, req,
		c.correlation)); err != nil {
		return nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return nil, err
	}
	if n := int32(binary.BigEndian.Uint32(head[4:])); n != c.correlation {
		return nil, fmt.Errorf("an answer to %d, not to %d", n, c.correlation)
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:])-4)
	_, err := io.ReadFull(c, body)
	return body, err
}

// authenticate shows the readers' password.
func (c *raw) authenticate(t *testing.T) {
	t.Helper()
	hello := kmsg.NewPtrSASLHandshakeRequest()
	hello.SetVersion(1)
	hello.Mechanism = "SCRAM-SHA-256"
	if _, err := c.send(hello); err != nil {
		t.Fatal(err)
	}
	session, message, err := scram.Auth{User: "reader", Pass: password}.AsSha256Mechanism().Authenticate(t.Context(), "")
	for done := false; !done; {
		if err != nil {
			t.Fatal(err)
		}
		req := kmsg.NewPtrSASLAuthenticateRequest()
		req.SetVersion(1)
		req.SASLAuthBytes = message
		body, err2 := c.send(req)
		res := kmsg.NewPtrSASLAuthenticateResponse()
		res.SetVersion(1)
		if err2 == nil {
			err2 = res.ReadFrom(body)
		}
		if err2 != nil || res.ErrorCode != 0 {
			t.Fatal(err2, res.ErrorCode)
		}
		done, message, err = session.Challenge(res.SASLAuthBytes)
	}
}

// announced asks for the requests that the port announces.
func (c *raw) announced(t *testing.T, version int16) []kmsg.ApiVersionsResponseApiKey {
	t.Helper()
	req := kmsg.NewPtrApiVersionsRequest()
	req.SetVersion(version)
	req.ClientSoftwareName, req.ClientSoftwareVersion = "test", "1"
	body, err := c.send(req)
	res := kmsg.NewPtrApiVersionsResponse()
	res.SetVersion(version)
	if err == nil {
		err = res.ReadFrom(body)
	}
	if err != nil || len(res.ApiKeys) == 0 {
		t.Fatalf("version %d: %d requests are announced, %v", version, len(res.ApiKeys), err)
	}
	return res.ApiKeys
}

// request makes one that the broker can answer.
func request(key, version int16) kmsg.Request {
	req := kmsg.RequestForKey(key)
	if d, ok := req.(interface{ Default() }); ok {
		d.Default()
	}
	switch r := req.(type) {
	case *kmsg.ProduceRequest:
		r.Acks = -1
	case *kmsg.ApiVersionsRequest:
		r.ClientSoftwareName, r.ClientSoftwareVersion = "test", "1"
	case *kmsg.SASLHandshakeRequest:
		r.Mechanism = "SCRAM-SHA-256"
	case *kmsg.SASLAuthenticateRequest:
		r.SASLAuthBytes = []byte("n,,n=reader,r=nonce")
	}
	req.SetVersion(version)
	return req
}

// Of all requests that Kafka has, the port announces those that it answers, in each version
// that it announces, and no others. A client would otherwise repeat the request until its timeout, or read
// an empty list where it expects none.
func TestAnnouncedIsAnswered(t *testing.T) {
	b := open(t)
	fresh := func() *raw {
		c := newRaw(t, b)
		c.authenticate(t)
		return c
	}
	announced := map[int16]kmsg.ApiVersionsResponseApiKey{}
	for _, k := range fresh().announced(t, 3) {
		announced[k.ApiKey] = k
	}
	c := fresh()
	answered := func(key, version int16) bool {
		greets := key == int16(kmsg.SASLHandshake) || key == int16(kmsg.SASLAuthenticate)
		if greets { // once in a connection
			_ = c.Close()
			c = newRaw(t, b)
		}
		if key == int16(kmsg.SASLAuthenticate) {
			if _, err := c.send(request(int16(kmsg.SASLHandshake), 1)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := c.send(request(key, version))
		if err != nil || greets {
			_ = c.Close()
			c = fresh()
		}
		return err == nil
	}
	for key := int16(0); key <= kmsg.MaxKey; key++ {
		if kmsg.RequestForKey(key) == nil {
			continue
		}
		k, ok := announced[key]
		if !ok {
			if answered(key, 0) || answered(key, kmsg.RequestForKey(key).MaxVersion()) {
				t.Errorf("%s is answered and not announced", kmsg.NameForKey(key))
			}
			continue
		}
		for version := k.MinVersion; version <= k.MaxVersion; version++ {
			if key == int16(kmsg.SASLHandshake) && version == 0 { // for librdkafka, which does not send it
				continue
			}
			if !answered(key, version) {
				t.Errorf("version %d of %s is announced and not answered", version, kmsg.NameForKey(key))
			}
		}
	}
	for _, want := range []kmsg.Key{kmsg.Metadata, kmsg.Fetch, kmsg.OffsetCommit, kmsg.CreateTopics} {
		if _, ok := announced[int16(want)]; !ok {
			t.Errorf("%s is not announced", want.Name())
		}
	}
	for _, not := range []kmsg.Key{kmsg.DescribeTopicPartitions, kmsg.GetTelemetrySubscriptions, kmsg.DescribeACLs} {
		if _, ok := announced[int16(not)]; ok {
			t.Errorf("%s is announced", not.Name())
		}
	}
}

// The port announces the same requests before and after the password, and at any time.
func TestAnnouncedIsTheSame(t *testing.T) {
	b := open(t)
	c := newRaw(t, b)
	before := c.announced(t, 3)
	c.authenticate(t)
	if !slices.EqualFunc(before, c.announced(t, 3), sameKey) {
		t.Error("other requests are announced after the password")
	}
	if _, err := c.send(request(int16(kmsg.Metadata), 8)); err != nil {
		t.Fatal(err)
	}
	for version := range int16(6) {
		if now := c.announced(t, version); !slices.EqualFunc(before, now, sameKey) {
			t.Errorf("version %d: %d requests are announced, and %d before", version, len(now), len(before))
		}
	}
	if _, err := c.send(request(int16(kmsg.Metadata), 8)); err != nil {
		t.Error(err)
	}
	if !b.Watched() {
		t.Error("the reader does not count")
	}
}

func sameKey(a, b kmsg.ApiVersionsResponseApiKey) bool {
	return a.ApiKey == b.ApiKey && a.MinVersion == b.MinVersion && a.MaxVersion == b.MaxVersion
}
