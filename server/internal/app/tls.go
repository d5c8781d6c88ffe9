package app

import (
	"errors"
	"fmt"

	"github.com/parley-chat/parley/server/certificate"
	"github.com/parley-chat/parley/server/telemetry"
)

// openCertificate reads the certificate of the public listener, if there is one.
func (p *program) openCertificate() (err error) {
	cert, key := p.cfg.TLS.Cert, p.cfg.TLS.Key
	if cert == "" && key == "" {
		return nil
	}
	if cert == "" || key == "" {
		return errors.New("tls-cert and tls-key go together")
	}
	if p.certificate, err = certificate.Open(cert, key, clocks.Wall, p.log); err != nil {
		return fmt.Errorf("tls-cert, tls-key: %w", err)
	}
	p.metrics.GaugeOf(telemetry.CertificateDays, "Days until the certificate of the listener for clients expires.", "file", cert,
		p.certificate.DaysLeft)
	return nil
}

// scheme is how the public listener is called.
func (p *program) scheme() string {
	if p.certificate != nil {
		return "https://"
	}
	return "http://"
}
