package compat_test

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/parley-chat/parley/schemacheck/compat"
	"github.com/parley-chat/parley/schemacheck/compile"
)

// A gate compares a schema with the released one, and refuses it if a finding blocks.
func ExampleCompare() {
	schema := func(field string) []protoreflect.FileDescriptor {
		files, mistakes := compile.Files(context.Background(), map[string]string{
			"order.proto": `syntax = "proto3"; package shop; message Order { ` + field + ` }`,
		}, []string{"order.proto"})
		if len(mistakes) > 0 {
			panic(mistakes[0].Text)
		}
		return files
	}
	released, proposed := schema("int32 amount = 1;"), schema("string amount = 1;")
	findings, err := compat.Compare(context.Background(), released, proposed, compat.Options{})
	if err != nil {
		panic(err)
	}
	for _, f := range findings {
		fmt.Printf("%s: %s of %s, %s\n", f.Severity, f.Rule, f.Subject, f.Detail)
		fmt.Printf("breaks old consumers: %t, breaks new consumers: %t\n", f.OldReadsNew, f.NewReadsOld)
	}
	// Output:
	// block: SCALAR_TYPE_CHANGED of shop.Order.amount, int32 to string
	// breaks old consumers: true, breaks new consumers: true
}

// Policies have the names that schema registries use, in any case.
func ExampleParsePolicy() {
	for _, name := range []string{"FULL", "backward_transitive"} {
		policy, err := compat.ParsePolicy(name)
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s: protects old consumers: %t, new consumers: %t, of every version: %t\n",
			policy, policy.OldReadsNew(), policy.NewReadsOld(), policy.Transitive())
	}
	// Output:
	// FULL: protects old consumers: true, new consumers: true, of every version: false
	// BACKWARD_TRANSITIVE: protects old consumers: false, new consumers: true, of every version: true
}
