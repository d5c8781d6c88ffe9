package scenario

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	deliveryv1 "github.com/parley-chat/parley/gen/parley/delivery/v1"
	"github.com/parley-chat/parley/gen/parley/delivery/v1/deliveryv1connect"
	messagev1 "github.com/parley-chat/parley/gen/parley/message/v1"
	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
	"github.com/parley-chat/parley/server/load/figure"
	"github.com/parley-chat/parley/server/load/probe"
	"github.com/parley-chat/parley/server/load/stream"
)

const (
	syncPage    = 1_000 // chats
	changesPage = 100
)

// absent is clients that are away while others send.
type absent struct {
	*run
	clients []*client
}

// client is what a device keeps between two synchronisations.
type client struct {
	person *person
	token  string
	known  map[string]int64 // version by chat
}

// returned is what happened when the clients came back.
type returned struct {
	syncs, reads figure.Histogram // single calls
	complete     figure.Histogram // of a client, until it has everything
	messages     atomic.Int64
	expected     int64
}

func beginSync(ctx context.Context, r *run) (round, func(), error) {
	a := &absent{run: r}
	for _, p := range r.world.people {
		a.clients = append(a.clients, &client{person: p, known: map[string]int64{}})
	}
	if err := r.world.connect(ctx); err != nil {
		return nil, r.world.disconnect, err
	}
	// The first synchronisation of each client is not measured.
	err := a.comeBack(ctx, 0, &returned{})
	return a.round, r.world.disconnect, err
}

// round sends while everybody is away, and measures how all come back.
func (a *absent) round(ctx context.Context, n int) (figure.Figures, error) {
	number := int64(n + 1)
	stop := a.show.During("away", 0, nil)
	err := each(len(a.world.groups)*a.Messages, setupCallers, func(i int) error {
		g := a.world.groups[i%len(a.world.groups)]
		text := stream.AppendStamp(nil, number, 0, a.Size)
		return a.world.call(ctx, g.members[i%len(g.members)], messagev1connect.MessageServiceSendMessageProcedure,
			&messagev1.SendMessageRequest{ChatId: g.id, Content: string(text)}, &messagev1.SendMessageResponse{})
	})
	stop()
	if err != nil {
		return nil, err
	}
	got := &returned{}
	for _, g := range a.world.groups {
		got.expected += int64(len(g.members) * a.Messages)
	}
	before, began, own := a.server.Read(ctx), time.Now(), probe.ProcessorTime()
	if err := a.comeBack(ctx, number, got); err != nil {
		return nil, err
	}
	took := time.Since(began)
	own = probe.ProcessorTime() - own
	var f figure.Figures
	clients := uint64(len(a.clients))
	f.Add("clients", "/s", float64(clients)/took.Seconds())
	f.Add("messages", "/s", float64(got.messages.Load())/took.Seconds())
	f.AddQuantiles("sync", &got.syncs)
	f.AddQuantiles("read", &got.reads)
	f.AddQuantiles("client", &got.complete)
	f.Add(missingName, "", float64(max(0, got.expected-got.messages.Load())))
	f.Add(repeatedName, "", float64(max(0, got.messages.Load()-got.expected)))
	a.server.Add(&f, before, a.server.Read(ctx), took, "client", clients)
	probe.AddOwn(&f, own, took, "client", clients)
	return f, nil
}

func (a *absent) comeBack(ctx context.Context, number int64, got *returned) error {
	stop := a.show.During("back", 0, func(ctx context.Context) string {
		return fmt.Sprintf("%9d of %d clients%s", got.complete.Count(), len(a.clients), a.server.Line(ctx))
	})
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, stormTime)
	defer cancel()
	return each(len(a.clients), a.Callers, func(i int) error {
		began := time.Now()
		if err := a.synchronise(ctx, a.clients[i], number, got); err != nil {
			return fmt.Errorf("%s: %w", a.clients[i].person.name, err)
		}
		got.complete.Add(time.Since(began))
		return nil
	})
}

// synchronise asks what changed, and reads it.
func (a *absent) synchronise(ctx context.Context, c *client, number int64, got *returned) error {
	req := &deliveryv1.SyncRequest{Token: c.token, PageSize: syncPage}
	for {
		var res deliveryv1.SyncResponse
		if err := timed(ctx, c.person, deliveryv1connect.DeliveryServiceSyncProcedure, req, &res, &got.syncs); err != nil {
			return err
		}
		for _, chat := range res.GetOverviews() {
			id, head := chat.GetChat().GetChatId(), chat.GetHead().GetVersion()
			if err := a.readTo(ctx, c, id, head, number, got); err != nil {
				return err
			}
		}
		if req.PageToken = res.GetNextPageToken(); req.PageToken == "" {
			c.token = res.GetToken()
			return nil
		}
	}
}

// readTo reads the changes of a chat up to a version.
func (a *absent) readTo(ctx context.Context, c *client, chat string, head, number int64, got *returned) error {
	for c.known[chat] < head {
		var res messagev1.ListChangesResponse
		req := &messagev1.ListChangesRequest{ChatId: chat, AfterVersion: c.known[chat], PageSize: changesPage}
		err := timed(ctx, c.person, messagev1connect.MessageServiceListChangesProcedure, req, &res, &got.reads)
		if err != nil {
			return err
		}
		switch {
		case res.GetReset_():
			return fmt.Errorf("the server gives no changes that are so far back: take fewer --messages than %d", a.Messages)
		case res.GetVersion() <= c.known[chat]:
			return fmt.Errorf("no changes of %s after version %d of %d", chat, c.known[chat], head)
		}
		c.known[chat] = res.GetVersion()
		for _, change := range res.GetChanges() {
			if n, _, ok := stream.ParseStamp([]byte(change.GetMessage().GetContent())); ok && n == number {
				got.messages.Add(1)
			}
		}
	}
	return nil
}

// timed makes a call that is measured.
func timed(ctx context.Context, p *person, procedure string, req, res proto.Message, h *figure.Histogram) error {
	message, err := proto.Marshal(req)
	if err != nil {
		return err
	}
	began := time.Now()
	answer, err := p.calls.Call(ctx, p.token, procedure, message)
	if err != nil {
		return err
	}
	h.Add(time.Since(began))
	return proto.Unmarshal(answer, res)
}
