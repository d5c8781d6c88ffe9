package api

import (
	"slices"

	"connectrpc.com/connect"

	"github.com/parley-chat/parley/server/infra/rpc"
)

// rejections are the refusals of requests that reach no handler, or whose caller does not wait.
// An empty text says what is wrong with the request.
var rejections = []rpc.Refusal{
	{Code: connect.CodeInvalidArgument, Reason: reasonInvalid},
	{Code: connect.CodeInvalidArgument, Reason: reasonMediaType,
		Text: "the procedure takes another Content-Type, or another encoding of a GET request"},
	{Code: connect.CodeResourceExhausted, Reason: reasonTooLarge, Text: "the request is larger than this call allows"},
	{Code: connect.CodeUnimplemented, Reason: reasonNoProcedure, Text: "there is no procedure of this name"},
	{Code: connect.CodeUnimplemented, Reason: reasonMethod, Text: "the procedure takes another HTTP method"},
	{Code: connect.CodeUnimplemented, Reason: "UNIMPLEMENTED", Text: "the request is compressed in an unknown way"},
	{Code: connect.CodeCanceled, Reason: reasonCanceled, Text: "the request was canceled"},
	{Code: connect.CodeDeadlineExceeded, Reason: reasonDeadline, Text: "the request took too long"},
	{Code: connect.CodeInternal, Reason: reasonInternal, Text: "internal error"},
}

// Reasons are all refusals of calls, for the documents: a row for each text of a reason. A text
// is empty where it depends on the request.
func Reasons() []rpc.Refusal {
	return append(slices.Clone(rejections), refusals.All()...)
}
