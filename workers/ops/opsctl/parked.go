package opsctl

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
	"github.com/parley-chat/parley/gen/parley/ops/v1/opsv1connect"
	"github.com/parley-chat/parley/server/infra/cmdline"
)

func (p *program) parkedKeys() *cobra.Command {
	return cmdline.Group("parked", "keys that wait behind a dead letter", p.listParked(), p.releaseParked())
}

func (c *call) parked() opsv1connect.ParkedKeyServiceClient {
	return opsv1connect.NewParkedKeyServiceClient(c.http, c.url, c.with)
}

func (p *program) listParked() *cobra.Command {
	req := &opsv1.ListParkedKeysRequest{}
	return p.command(spec{
		use: "list", short: "list the keys whose records wait behind a dead letter",
		flags: func(fs *pflag.FlagSet) {
			fs.StringVar(&req.Group, "group", "", "of this `group`")
			fs.StringVar(&req.Topic, "topic", "", "of records of this `topic`")
			fs.StringVar(&req.Key, "key", "", "this `key`; events have the chat's id")
			pagingFlags(fs, &req.PageSize, &req.PageToken, "keys")
		},
		run: func(c *call) error {
			res, err := c.parked().ListParkedKeys(c.ctx, req)
			if err != nil || c.printJSON(res) {
				return err
			}
			return c.page("GROUP\tTOPIC\tKEY\tSINCE\tRECORDS\tBYTES\tPARTITION\tBEHIND\tREASON", func(w io.Writer) {
				for _, k := range res.GetKeys() {
					reason := word(k.GetFailureClass(), "FAILURE_CLASS_") + ": " + k.GetReason()
					if k.GetHeldUntil() != nil {
						reason = "is being released  " + reason
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", safe(k.GetGroup()), safe(k.GetTopic()),
						safe(k.GetKey()), formatTime(k.GetSince()), k.GetRecords(), k.GetBytes(), k.GetPartition(),
						safe(k.GetFailedRecord()), safe(reason))
				}
			}, res.GetNextPageToken())
		},
	})
}

// releaseParked has all letters of a key redriven, or discarded: then it is not parked any
// more.
func (p *program) releaseParked() *cobra.Command {
	var execute bool
	var discard string
	return p.command(spec{
		use: "release GROUP TOPIC KEY", short: "redrive or discard all dead letters of a key, in order", args: 3,
		needs: "group, topic and key, as parked list prints them",
		flags: func(fs *pflag.FlagSet) {
			executeFlag(fs, &execute)
			fs.StringVar(&discard, "discard", "", "give its records up, for this `reason`, instead of redriving them")
		},
		run: func(c *call) error {
			f := &opsv1.DeadLetterFilter{Group: c.args[0], Topic: c.args[1], Key: c.args[2],
				Source: opsv1.DeadLetterSource_DEAD_LETTER_SOURCE_EVENTS}
			var err error
			if discard != "" {
				err = c.discard(&opsv1.DiscardDeadLettersRequest{Filter: f, Reason: discard, Execute: execute})
			} else {
				err = c.redrive(&opsv1.RedriveDeadLettersRequest{Filter: f, Rate: releaseRate, Execute: execute})
			}
			if err != nil || !execute || c.json {
				return err
			}
			res, err := c.parked().ListParkedKeys(c.ctx,
				&opsv1.ListParkedKeysRequest{Group: c.args[0], Topic: c.args[1], Key: c.args[2]})
			if err != nil {
				return err
			}
			if len(res.GetKeys()) > 0 {
				fmt.Fprintln(c.stderr, "the key is still parked: records came meanwhile; release it again")
				return errLeft
			}
			return c.say("the key is not parked")
		},
	})
}

// releaseRate is how many letters a second are redriven at most.
const releaseRate = 1000
