package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"strings"

	"connectrpc.com/connect"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/gen/parley/topic/v1/topicv1connect"
)

// parleyServer is a server of Parley, spoken to with gRPC.
type parleyServer struct {
	process
	program, url, token string
}

var listening = regexp.MustCompile(`listening on (http://[^\s,]+)`)

func (s *parleyServer) start(ctx context.Context, dir string) error {
	s.cmd = exec.CommandContext(ctx, s.program, "--data-dir", dir, "--topic-creators", "bench",
		"--limits", "off", "--max-requests", "0", "--listen", "127.0.0.1:0",
		"--kafka-listen", "127.0.0.1:0", "--registry-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	for s.url == "" && lines.Scan() {
		if m := listening.FindStringSubmatch(lines.Text()); m != nil {
			s.url = m[1]
		}
	}
	go func() {
		for lines.Scan() {
		}
	}()
	if s.url == "" {
		return errors.New("it did not start")
	}
	token, err := exec.CommandContext(ctx, s.program, "--data-dir", dir, "token", "bench").Output()
	s.token = strings.TrimSpace(string(token))
	return err
}

// bearer adds the token. Each has a connection of its own.
type bearer struct {
	token string
	*http.Transport
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.Transport.RoundTrip(r)
}

func (s *parleyServer) client() *http.Client {
	t := &http.Transport{Protocols: new(http.Protocols)}
	t.Protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: bearer{s.token, t}}
}

func (s *parleyServer) prepare(ctx context.Context, groups int) error {
	c := s.client()
	_, err := topicv1connect.NewTopicServiceClient(c, s.url, connect.WithGRPC()).ConfigureTopic(ctx,
		&topicv1.ConfigureTopicRequest{Topic: "bench", Config: &topicv1.TopicConfig{
			Semantics: topicv1.Semantics_SEMANTICS_PUB_SUB}})
	for g := 0; g < groups && err == nil; g++ {
		_, err = topicv1connect.NewSubscriptionServiceClient(c, s.url, connect.WithGRPC()).CreateSubscription(ctx,
			&topicv1.CreateSubscriptionRequest{Topic: "bench", Group: fmt.Sprint("g", g)})
	}
	return err
}

func (s *parleyServer) publisher(int) func(context.Context, [][]byte) error {
	c := topicv1connect.NewTopicServiceClient(s.client(), s.url, connect.WithGRPC())
	return func(ctx context.Context, payloads [][]byte) error {
		req := &topicv1.PublishRequest{Topic: "bench", Messages: make([]*topicv1.TopicMessage, len(payloads))}
		for i, p := range payloads {
			req.Messages[i] = &topicv1.TopicMessage{Payload: p}
		}
		_, err := c.Publish(ctx, req)
		return err
	}
}

func (s *parleyServer) consume(ctx context.Context, group int, handle func([]byte)) error {
	stream, err := topicv1connect.NewConsumerServiceClient(s.client(), s.url, connect.WithGRPC()).ConsumeBidi(ctx)
	if err != nil {
		return err
	}
	err = stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Attach{Attach: &topicv1.Attach{
		Topic: "bench", Group: fmt.Sprint("g", group), RenewCredits: true,
		Credits: &topicv1.Credits{Messages: 2 * maxAhead, Bytes: 8 << 20}}}})
	if err == nil {
		_, err = stream.Receive()
	}
	if err != nil {
		return err
	}
	go func() {
		for {
			res, err := stream.Receive()
			if err != nil {
				return // what is missing then is noticed
			}
			d := res.GetDelivery()
			if d == nil {
				continue
			}
			for _, m := range d.GetMessages() {
				handle(m.GetPayload())
			}
			err = stream.Send(&topicv1.ConsumeBidiRequest{Body: &topicv1.ConsumeBidiRequest_Ack{Ack: &topicv1.AckSet{
				Positions: []*topicv1.Positions{{Base: d.GetBase(), Count: int64(len(d.GetMessages()))}}}}})
			if err != nil {
				return
			}
		}
	}()
	return nil
}
