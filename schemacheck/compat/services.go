package compat

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/parley-chat/parley/schemacheck/compat/rule"
	"github.com/parley-chat/parley/schemacheck/compat/schema"
)

// services compares RPC contracts; nothing of them is in events.
func (c *comparer) services() {
	if c.o.Scope == Event {
		return
	}
	c.api, c.current = true, ""
	for _, bf := range c.base.Scope {
		hf := c.counterpartOf(bf)
		if hf == nil {
			continue // reported as a lost file
		}
		for b := range schema.All(bf.Services()) {
			h := hf.Services().ByName(b.Name())
			if h == nil {
				c.inBase(rule.ServiceRemoved, b)
				continue
			}
			c.service(b, h)
		}
	}
}

func (c *comparer) service(b, h protoreflect.ServiceDescriptor) {
	for bm := range schema.All(b.Methods()) {
		if hm := h.Methods().ByName(bm.Name()); hm != nil {
			c.method(bm, hm)
			continue
		}
		var renamed protoreflect.MethodDescriptor
		for hm := range schema.All(h.Methods()) {
			if b.Methods().ByName(hm.Name()) == nil && c.sameMethod(bm, hm) {
				renamed = hm
			}
		}
		if renamed != nil {
			c.inHead(rule.RPCRenamed, renamed, detail(string(bm.Name()), string(renamed.Name())))
		} else {
			c.inBase(rule.RPCRemoved, bm)
		}
	}
}

func (c *comparer) sameMethod(b, h protoreflect.MethodDescriptor) bool {
	return c.mapped(b.Input().FullName()) == h.Input().FullName() &&
		c.mapped(b.Output().FullName()) == h.Output().FullName() &&
		b.IsStreamingClient() == h.IsStreamingClient() && b.IsStreamingServer() == h.IsStreamingServer()
}

func (c *comparer) method(b, h protoreflect.MethodDescriptor) {
	if c.mapped(b.Input().FullName()) != h.Input().FullName() {
		c.inHead(rule.RPCRequestTypeChanged, h, detail(string(b.Input().FullName()), string(h.Input().FullName())))
	}
	if c.mapped(b.Output().FullName()) != h.Output().FullName() {
		c.inHead(rule.RPCResponseTypeChanged, h, detail(string(b.Output().FullName()), string(h.Output().FullName())))
	}
	if b.IsStreamingServer() != h.IsStreamingServer() {
		c.inHead(rule.RPCServerStreamingChanged, h)
	}
	if b.IsStreamingClient() != h.IsStreamingClient() {
		c.inHead(rule.RPCClientStreamingChanged, h)
	}
	// How much a caller may assume: nothing, that it may repeat, that it may use GET.
	order := map[descriptorpb.MethodOptions_IdempotencyLevel]int{
		descriptorpb.MethodOptions_IDEMPOTENT: 1, descriptorpb.MethodOptions_NO_SIDE_EFFECTS: 2,
	}
	level := func(m protoreflect.MethodDescriptor) descriptorpb.MethodOptions_IdempotencyLevel {
		o, _ := m.Options().(*descriptorpb.MethodOptions)
		return o.GetIdempotencyLevel()
	}
	levels := detail(level(b).String(), level(h).String())
	switch was, is := order[level(b)], order[level(h)]; {
	case is < was:
		c.inHead(rule.RPCIdempotencyLowered, h, levels)
	case is > was:
		c.inHead(rule.RPCIdempotencyRaised, h, levels)
	}
}
