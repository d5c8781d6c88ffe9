// Chat is a chat in a terminal: it sends the lines of standard input and prints the messages of all, each once and in
// order. It stands on generated stubs alone; what the protocol asks for is said at the Frame of frame.proto.
//
//	chat BASE TOKEN CHAT connect|connect-h2c|grpc|grpc-web
package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/google/uuid"
	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
)

var (
	// Errors that repetition does not fix.
	final             = []connect.Code{connect.CodeInvalidArgument, connect.CodePermissionDenied, connect.CodeUnauthenticated, connect.CodeFailedPrecondition}
	messages          messagev1connect.MessageServiceClient
	delivery          deliveryv1connect.DeliveryServiceClient
	token, generation string // of the last synchronisation, and of the server's store
	commit            int64  // the newest of that generation that was shown
	place             atomic.Value
	own, newest, last int64 // version shown, newest version seen, sequence of the last message shown
	pause, chatID     = time.Second / 4, os.Args[3]
)

// headers are those of each call: who calls, and how far it was shown the store's history.
type headers struct{ http.RoundTripper }

func (h headers) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", "Bearer "+os.Args[2])
	if shown, _ := place.Load().(string); shown != "" {
		r.Header.Set("Parley-History", shown)
	}
	return h.RoundTripper.RoundTrip(r)
}

func main() {
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(os.Args[4] == "connect" || os.Args[4] == "grpc-web")
	transport.Protocols.SetUnencryptedHTTP2(os.Args[4] == "connect-h2c" || os.Args[4] == "grpc")
	protocol := map[string][]connect.ClientOption{"grpc": {connect.WithGRPC()}, "grpc-web": {connect.WithGRPCWeb()}}[os.Args[4]]
	messages = messagev1connect.NewMessageServiceClient(&http.Client{Transport: headers{transport}, Timeout: 10 * time.Second}, os.Args[1], protocol...)
	delivery = deliveryv1connect.NewDeliveryServiceClient(&http.Client{Transport: headers{transport}}, os.Args[1], protocol...)
	go func() {
		for ; ; pause = min(2*pause, 5*time.Second) {
			err := follow()
			log.Println("stream ended:", err)
			if slices.Contains(final, connect.CodeOf(err)) {
				os.Exit(1)
			} else if connect.CodeOf(err) == connect.CodeAborted { // the server's data are an older copy: nothing shown counts
				token, own, newest, last = "", 0, 0, 0
				place.Store("")
			}
			time.Sleep(pause/2 + rand.N(pause))
		}
	}()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		send(lines.Text())
	}
}

// send retries under the same id until the message is stored or refused.
func send(content string) {
	request := &messagev1.SendMessageRequest{ChatId: chatID, Content: content, ClientMessageId: uuid.NewString()}
	for ; ; time.Sleep(rand.N(time.Second)) {
		if _, err := messages.SendMessage(context.Background(), request); err == nil {
			return
		} else if slices.Contains(final, connect.CodeOf(err)) {
			log.Fatalln("refused:", err)
		}
	}
}

func follow() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watchdog := time.AfterFunc(50*time.Second, cancel) // something comes every 15 s
	known := []*deliveryv1.KnownChat{{ChatId: chatID, Version: own}}
	stream, err := delivery.Subscribe(ctx, &deliveryv1.SubscribeRequest{Token: token, KnownChats: known})
	if err != nil {
		return err
	}
	for ack := (&deliveryv1.AckRequest{}); stream.Receive(); {
		watchdog.Reset(50 * time.Second)
		for i, f := range stream.Msg().GetFrames() {
			ack.Position = stream.Msg().GetFirstPosition() + int64(i)
			ack.StreamId = cmp.Or(f.GetHello().GetStreamId(), ack.StreamId)
			apply(f)
		}
		shown(stream.Msg().GetCommit())
		for own < newest {
			ctx, call := connect.NewClientContext(ctx)
			page, err := messages.ListChanges(ctx, &messagev1.ListChangesRequest{ChatId: chatID, AfterVersion: own})
			var at int64
			if err == nil {
				_, err = fmt.Sscanf(call.ResponseHeader().Get("Parley-History"), generation+"-%d", &at)
			}
			if err != nil { // also if the server was started again: the stream has ended
				return err
			}
			shown(at)
			for _, change := range page.GetChanges() {
				show(change.GetMessage())
			}
			for _, m := range page.GetMessages() { // too far behind: the newest page instead
				show(m)
			}
			own = page.GetVersion()
		}
		_, _ = delivery.Ack(ctx, ack) // if one is lost, the next one covers it
	}
	return stream.Err()
}

// shown keeps how far the store's history was shown.
func shown(at int64) {
	commit = max(commit, at)
	place.Store(fmt.Sprintf("%s-%d", generation, commit))
}

func apply(f *deliveryv1.Frame) {
	if hello := f.GetHello(); hello != nil && hello.GetGeneration() != generation {
		generation, commit = hello.GetGeneration(), 0 // the server was started again
	} else if f.GetHeartbeat() != nil { // all that was missed has come
		token, pause = f.GetHeartbeat().GetToken(), time.Second/4
	} else if f.GetReset_() != nil && f.GetChatId() == "" {
		token, own, newest = "", 0, 0
	} else if end := f.GetEnd(); end != nil {
		if end.GetCode() == deliveryv1.EndCode_END_CODE_SESSION_REVOKED || end.GetCode() == deliveryv1.EndCode_END_CODE_REPLACED {
			log.Fatalln("ended for good:", end.GetCode())
		}
		pause = end.GetReconnectAfter().AsDuration() + time.Millisecond
	} else if f.GetChatId() == chatID {
		newest = max(newest, f.GetVersion(), f.GetHead().GetVersion(), f.GetReset_().GetVersion())
		if f.GetAfterVersion() <= own && own < f.GetVersion() {
			own = f.GetVersion()
			show(f.GetMessage())
		}
	}
}

func show(m *messagev1.Message) {
	if m != nil && m.GetSequence() <= last {
		log.Println("shown before:", m.GetSequence())
	} else if m != nil {
		last = m.GetSequence()
		fmt.Println(last, m.GetSenderId(), m.GetContent())
	}
}
