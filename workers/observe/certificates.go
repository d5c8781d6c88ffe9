package observe

import (
	"github.com/parley-chat/parley/server/infra/certificate"
	"github.com/parley-chat/parley/server/infra/telemetry"
)

// Certificates registers for how long the certificates of a process are valid: those that it shows to clients, to
// other processes and to Kafka. One that it shows to several counts once.
func Certificates(m *telemetry.Metrics, list ...*certificate.Certificate) {
	known := map[string]bool{}
	for _, c := range list {
		if known[c.File()] {
			continue
		}
		known[c.File()] = true
		m.GaugeOf(telemetry.CertificateDays, "Days until a certificate of this process expires.", "file", c.File(),
			c.DaysLeft)
	}
}
