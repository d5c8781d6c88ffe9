package app

import (
	"time"

	"github.com/parley-chat/parley/gen/parley/message/v1/messagev1connect"
)

// observe counts an RPC. Sends are measured for what runs beside them in this process.
func (p *program) observe(procedure, code string, took time.Duration) {
	p.metrics.Request(procedure, code, took)
	if procedure == messagev1connect.MessageServiceSendMessageProcedure {
		p.sends.Observe(time.Now(), took)
	}
}
