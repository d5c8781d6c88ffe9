package opsctl

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// executeFlag declares the flag without which a command changes nothing.
func executeFlag(fs *pflag.FlagSet, execute *bool) {
	fs.BoolVar(execute, "execute", false, "do it; otherwise report what would be done")
}

// reasonFlag declares the flag of what the audit keeps.
func reasonFlag(fs *pflag.FlagSet, reason *string) {
	fs.StringVar(reason, "reason", "", "why, for the audit: `text` of at least 3 characters")
}

// maxPage is the size of the largest page of a list.
const maxPage = 1000

// pagingFlags declares the flags of a list that comes in pages; rows is what it has.
func pagingFlags(fs *pflag.FlagSet, size *int32, token *string, rows string) {
	*size = 100
	fs.Var((*pageSize)(size), "limit", fmt.Sprintf("at most so many `%s`, 1 to %d", rows, maxPage))
	fs.StringVar(token, "page-token", "", "where the page before ended, as printed by it")
}

// pageSize is a flag that takes the size of a page.
type pageSize int32

// String implements pflag.Value.
func (n *pageSize) String() string { return strconv.Itoa(int(*n)) }

// Type implements pflag.Value.
func (n *pageSize) Type() string { return "int32" }

// Set implements pflag.Value.
func (n *pageSize) Set(s string) error {
	v, err := strconv.ParseInt(s, 0, 32)
	if err != nil || v < 1 || v > maxPage {
		return fmt.Errorf("limit must be 1 to %d", maxPage)
	}
	*n = pageSize(v)
	return nil
}

// timeFlag declares a flag that takes a time, or how long ago it was.
func timeFlag(fs *pflag.FlagSet, to **timestamppb.Timestamp, name, usage string) {
	fs.Func(name, usage+": `time` is RFC 3339, or an age such as 90m", func(s string) error {
		if t, err := time.Parse(time.RFC3339, s); err == nil {
			*to = timestamppb.New(t)
			return nil
		}
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return errors.New("must be a time such as 2030-01-02T15:04:05Z or an age such as 90m")
		}
		*to = timestamppb.New(time.Now().Add(-d))
		return nil
	})
}

// bounded is a number of a flag as requests take it.
func bounded(n int) int32 { return int32(min(n, 1<<30)) }
