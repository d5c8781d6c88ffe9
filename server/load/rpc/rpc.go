// Package rpc calls a Parley server at little cost for the caller, who shares a machine
// with the server that is measured: HTTP/2 connections with one goroutine each that reads
// frames, HTTP/1.1 connections with none.
//
// It owns connections, the two protocols of calls and streams (Connect and gRPC), and the
// errors that servers answer with. Its callers own the procedures and the meaning of
// messages: they give and get encoded messages.
//
// Concurrency: a Conn and a Pool are safe for concurrent use. The functions of a stream
// run on the connection's reader, one at a time, and must not wait.
package rpc

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"
)

// Protocol is how a message stands in HTTP.
type Protocol string

// Protocols.
const (
	Connect Protocol = "connect"
	GRPC    Protocol = "grpc"
)

const (
	dialTime   = 10 * time.Second
	maxAnswer  = 16 << 20 // bytes of an answer, or of a stream's message
	maxErrText = 200      // bytes of an answer that is no message
)

// Target is a server and how it is spoken to.
type Target struct {
	Address  string      // host:port
	TLS      *tls.Config // nil: without
	Protocol Protocol
}

// Caller makes unary calls.
type Caller interface {
	// Call returns the answer's message. A refusal by the server is a *connect.Error.
	Call(ctx context.Context, token, procedure string, message []byte) ([]byte, error)
	Close()
}

// dial opens a connection that speaks one version of HTTP.
func (t Target) dial(ctx context.Context, alpn string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	if t.TLS == nil {
		return (&net.Dialer{}).DialContext(ctx, "tcp", t.Address)
	}
	conf := t.TLS.Clone()
	conf.NextProtos = []string{alpn}
	nc, err := (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", t.Address)
	if err != nil {
		return nil, err
	}
	if got := nc.(*tls.Conn).ConnectionState().NegotiatedProtocol; alpn == "h2" && got != alpn {
		return nil, errors.Join(errors.New("the server does not speak HTTP/2 over TLS"), nc.Close())
	}
	return nc, nil
}

func (t Target) scheme() string {
	if t.TLS != nil {
		return "https"
	}
	return "http"
}

func (t Target) contentType(stream bool) string {
	switch {
	case t.Protocol == GRPC:
		return "application/grpc+proto"
	case stream:
		return "application/connect+proto"
	default:
		return "application/proto"
	}
}

const envelopeSize = 5 // a byte of flags and the length in four

// envelope appends a message as gRPC and streams of Connect frame it.
func envelope(to, message []byte) []byte {
	to = append(to, 0)
	to = binary.BigEndian.AppendUint32(to, uint32(len(message)))
	return append(to, message...)
}

// response is what an answer's headers and trailers say.
type response struct {
	status      int // of HTTP
	grpcStatus  string
	grpcMessage string
}

func (r *response) set(name, value string) {
	switch name {
	case ":status":
		r.status, _ = strconv.Atoi(value) // 0 is no success either
	case "grpc-status":
		r.grpcStatus = value
	case "grpc-message":
		r.grpcMessage = value
	}
}

// answer is the message of a unary call.
func (t Target) answer(r response, body []byte) ([]byte, error) {
	if err := t.refusal(r, body); err != nil {
		return nil, err
	}
	if t.Protocol == Connect {
		return body, nil
	}
	if len(body) < envelopeSize || int(binary.BigEndian.Uint32(body[1:])) != len(body)-envelopeSize || body[0] != 0 {
		return nil, fmt.Errorf("an answer of %d bytes that is no message of gRPC", len(body))
	}
	return body[envelopeSize:], nil
}

// refusal is the error that an answer stands for, nil if it is none.
func (t Target) refusal(r response, body []byte) error {
	switch {
	case r.status != http.StatusOK:
		return refusalOf(r.status, body)
	case t.Protocol == Connect || r.grpcStatus == "0":
		return nil
	}
	code, err := strconv.ParseUint(r.grpcStatus, 10, 8)
	if err != nil {
		return errors.New("an answer without a status of gRPC")
	}
	return connect.NewError(connect.Code(code), errors.New(r.grpcMessage))
}

// wireError is an error in Connect's JSON.
type wireError struct {
	Code    connect.Code `json:"code"`
	Message string       `json:"message"`
}

func (e wireError) error() error { return connect.NewError(e.Code, errors.New(e.Message)) }

func refusalOf(status int, body []byte) error {
	var e wireError
	if json.Unmarshal(body, &e) == nil && e.Code != 0 {
		return e.error()
	}
	return fmt.Errorf("HTTP %d: %.*q", status, maxErrText, body)
}

// endOfStream reads the last message of a stream of Connect.
func endOfStream(body []byte) error {
	var end struct {
		Error *wireError `json:"error"`
	}
	if err := json.Unmarshal(body, &end); err != nil {
		return fmt.Errorf("end of a stream: %w", err)
	}
	if end.Error != nil {
		return end.Error.error()
	}
	return nil
}
