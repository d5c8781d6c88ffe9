package client_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	chatv1 "github.com/parley-chat/parley/gen/parley/chat/v1"
	"github.com/parley-chat/parley/server/client"
	"github.com/parley-chat/parley/server/client/device"
)

// Ann makes a group and writes; Bob's client shows it as soon as it has come.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	server, stop, err := serve(ctx) // a program has an address instead
	if err != nil {
		log.Fatal(err)
	}
	var running sync.WaitGroup
	defer func() { cancel(); running.Wait(); stop() }()

	// A client works while Run does, and names the chats that have changed.
	start := func(user string) (c *client.Client, changed <-chan string) {
		events := make(chan string, 100)
		c, err := client.Dial(client.Config{
			BaseURL: server.web.URL,
			UserID:  user,
			Token:   func(context.Context, bool) (string, error) { return user + "/0", nil },
			OnEvent: func(e device.Event) { events <- e.Changed },
		})
		if err != nil {
			log.Fatal(err)
		}
		running.Go(func() { _ = c.Run(ctx) })
		return c, events
	}
	ann, _ := start("ann")
	bob, changed := start("bob")

	made, err := ann.Create(ctx, &chatv1.CreateChatRequest{
		Type: chatv1.ChatType_CHAT_TYPE_GROUP, Name: "Tea", MemberIds: []string{"bob"},
	})
	if err != nil {
		log.Fatal(err)
	}
	ann.Send(made.GetChat().GetChatId(), "The kettle is on.")

	for id := range changed {
		bob.Open(id)
		chat, _ := bob.View(id)
		if len(chat.Messages) > 0 {
			fmt.Println(chat.Messages[0].GetSenderId()+":", chat.Messages[0].GetContent())
			break
		}
	}
	// Output: ann: The kettle is on.
}
