package rest_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// BenchmarkCall compares a call by REST with the same call as an RPC, both in JSON
// and without a network.
func BenchmarkCall(b *testing.B) {
	w := newFixture(b)
	path := w.group("bob")
	id := strings.TrimPrefix(path, chats+"/")
	rpc := http.NewServeMux()
	for p, h := range w.api.Handlers() {
		rpc.Handle(p, w.gate(h))
	}
	run := func(name string, h http.Handler, method, target, body string) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(method, target, strings.NewReader(body))
				if body == "" {
					r.Body = http.NoBody
				} else {
					r.Header.Set("Content-Type", "application/json")
				}
				r.Header.Set("Authorization", "Bearer ann")
				rec := httptest.NewRecorder()
				h.ServeHTTP(rec, r)
				if rec.Code/100 != 2 {
					b.Fatal(rec.Code, rec.Body)
				}
			}
		})
	}
	run("get/rpc", rpc, "POST", "/parley.chat.v1.ChatService/GetChat", `{"chatId":"`+id+`"}`)
	run("get/rest", w.handler, "GET", path, "")
	run("send/rpc", rpc, "POST", "/parley.message.v1.MessageService/SendMessage", `{"chatId":"`+id+`","content":"hello"}`)
	run("send/rest", w.handler, "POST", path+"/messages", `{"content":"hello"}`)
}
