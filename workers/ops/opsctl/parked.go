package opsctl

import (
	"errors"
	"flag"
	"fmt"
	"io"

	opsv1 "github.com/parley-chat/parley/gen/parley/ops/v1"
)

func listParked(fs *flag.FlagSet) func(*call, []string) error {
	req := &opsv1.ListParkedKeysRequest{}
	fs.StringVar(&req.Group, "group", "", "of this group")
	fs.StringVar(&req.Topic, "topic", "", "of records of this topic")
	fs.StringVar(&req.Key, "key", "", "this key; events have the chat's id")
	p := bindPaging(fs, "keys")
	return func(c *call, args []string) error {
		if err := p.check(args); err != nil {
			return err
		}
		req.PageSize, req.PageToken = int32(p.limit), p.token
		res, err := c.parked.ListParkedKeys(c.ctx, req)
		if err != nil || c.printJSON(res) {
			return err
		}
		return c.page("GROUP\tTOPIC\tKEY\tSINCE\tRECORDS\tBYTES\tPARTITION\tBEHIND\tREASON", func(w io.Writer) {
			for _, k := range res.GetKeys() {
				reason := enumWord(k.GetFailureClass(), "FAILURE_CLASS_") + ": " + k.GetReason()
				if k.GetHeldUntil() != nil {
					reason = "is being released  " + reason
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", safe(k.GetGroup()), safe(k.GetTopic()), safe(k.GetKey()),
					formatTime(k.GetSince()), k.GetRecords(), k.GetBytes(), k.GetPartition(), safe(k.GetFailedRecord()),
					safe(reason))
			}
		}, res.GetNextPageToken())
	}
}

// releaseParked has all letters of a key redriven, or discarded: then it is not parked any
// more.
func releaseParked(fs *flag.FlagSet) func(*call, []string) error {
	var execute bool
	bindExecute(fs, &execute)
	discard := fs.String("discard", "", "give its records up, for this reason, instead of redriving them")
	return func(c *call, args []string) error {
		if len(args) != 3 {
			return errUsage{errors.New("parked release needs group, topic and key, as parked list prints them")}
		}
		f := &opsv1.DeadLetterFilter{Group: args[0], Topic: args[1], Key: args[2],
			Source: opsv1.DeadLetterSource_DEAD_LETTER_SOURCE_EVENTS}
		if err := c.handleLetters(f, *discard, execute); err != nil || !execute || c.json {
			return err
		}
		res, err := c.parked.ListParkedKeys(c.ctx,
			&opsv1.ListParkedKeysRequest{Group: args[0], Topic: args[1], Key: args[2]})
		if err != nil {
			return err
		}
		if len(res.GetKeys()) > 0 {
			fmt.Fprintln(c.cfg.Stderr, "the key is still parked: records came meanwhile; release it again")
			return errLeft
		}
		_, err = fmt.Fprintln(c.cfg.Stdout, "the key is not parked")
		return err
	}
}

// handleLetters redrives dead letters, or discards them for a reason.
func (c *call) handleLetters(f *opsv1.DeadLetterFilter, reason string, execute bool) error {
	if reason != "" {
		stream, err := c.client.DiscardDeadLetters(c.ctx,
			&opsv1.DiscardDeadLettersRequest{Filter: f, Reason: reason, Execute: execute})
		if err != nil {
			return err
		}
		defer stream.Close()
		return follow(c, stream, "discarded", execute)
	}
	stream, err := c.client.RedriveDeadLetters(c.ctx,
		&opsv1.RedriveDeadLettersRequest{Filter: f, Rate: releaseRate, Execute: execute})
	if err != nil {
		return err
	}
	defer stream.Close()
	return follow(c, stream, "redriven", execute)
}

// releaseRate is how many letters a second are redriven at most.
const releaseRate = 1000
