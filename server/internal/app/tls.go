package app

import (
	"errors"
	"fmt"

	"github.com/parley-chat/parley/server/infra/certificate"
	"github.com/parley-chat/parley/workers/observe"
)

// openCertificates reads the certificate of the public listener, if there is one, and has all of the process
// measured.
func (p *program) openCertificates() (err error) {
	cert, key := p.cfg.TLS.Cert, p.cfg.TLS.Key
	if (cert == "") != (key == "") {
		return errors.New("tls-cert and tls-key go together")
	}
	var list []*certificate.Certificate
	if p.cfg.distributed() {
		links, kafka := p.cfg.Links, p.cfg.Kafka
		list, err = certificate.OpenAll(p.cfg.clocks.Wall, p.log, certificate.Files{Cert: links.Cert, Key: links.Key},
			certificate.Files{Cert: kafka.Cert, Key: kafka.Key})
		if err != nil {
			return err
		}
	}
	if cert != "" {
		if p.certificate, err = certificate.Open(cert, key, p.cfg.clocks.Wall, p.log); err != nil {
			return fmt.Errorf("tls-cert, tls-key: %w", err)
		}
		list = append(list, p.certificate)
	}
	observe.Certificates(p.metrics, list...)
	return nil
}

// scheme is how the public listener is called.
func (p *program) scheme() string {
	if p.certificate != nil {
		return "https://"
	}
	return "http://"
}
