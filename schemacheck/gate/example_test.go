package gate_test

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compile"
	"github.com/parley-chat/parley/schemacheck/gate"
)

// A transitive policy compares a schema with every released version, the newest first.
func ExampleCompareAll() {
	schema := func(fields string) []protoreflect.FileDescriptor {
		files, mistakes := compile.Files(context.Background(), map[string]string{
			"order.proto": `syntax = "proto3"; package shop; message Order { ` + fields + ` }`,
		}, []string{"order.proto"})
		if len(mistakes) > 0 {
			panic(mistakes[0].Text)
		}
		return files
	}
	n, version := gate.InMemory([][]protoreflect.FileDescriptor{
		schema("string id = 1; string note = 2;"),
		schema("string id = 1; reserved 2;"),
	})
	proposed := schema("string id = 1; int32 amount = 2;") // number 2 has another meaning now
	for c, err := range gate.CompareAll(context.Background(), n, version, proposed,
		compat.Options{Policy: compat.FullTransitive}) {
		if err != nil {
			panic(err)
		}
		for _, f := range c.Findings {
			fmt.Printf("version %d: %s, %s of %s\n", c.Version, f.Severity, f.Rule, f.Subject)
		}
	}
	// Output:
	// version 1: block, FIELD_ADDED_ON_RESERVED_NUMBER of shop.Order.amount
	// version 0: block, FIELD_NUMBER_REUSED_OTHER_TYPE of shop.Order.amount
}
