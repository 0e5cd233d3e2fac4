// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package devid

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Outcomes of a request, beside those of package guestapi.
const (
	outcomeAgain     = "given_again"
	outcomeInvalid   = "invalid"
	outcomeSharedTPM = "shared_tpm"
)

// Metrics are the numbers of device identities. A nil *Metrics takes nothing.
type Metrics struct{ requests *prometheus.CounterVec }

// NewMetrics registers hyperfleet_devid_requests_total{outcome}.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "hyperfleet",
		Subsystem: "devid",
		Name:      "requests_total",
		Help: "Machines' requests for the certificate of their device identity (attestation method tpm), by what became of them; " +
			"wrong_code, used, not_offered, invalid and shared_tpm do not happen to machines in good order.",
	}, []string{"outcome"})}

	if err := registerer.Register(m.requests); err != nil {
		return nil, fmt.Errorf("register metrics of device identities: %w", err)
	}

	return m, nil
}

func (m *Metrics) request(outcome string) {
	if m != nil {
		m.requests.WithLabelValues(outcome).Inc()
	}
}
