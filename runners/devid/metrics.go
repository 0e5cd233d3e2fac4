// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package devid

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/runners/guestapi"
)

// Outcomes of a request, in addition to those of package guestapi.
const (
	outcomeGivenAgain = "given_again"
	outcomeInvalid    = "invalid"
	outcomeSharedTPM  = "shared_tpm"
)

// Metrics counts requests for device identities. A nil *Metrics counts nothing.
type Metrics struct{ requests *prometheus.CounterVec }

// NewMetrics registers hyperfleet_devid_requests_total{outcome}.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "hyperfleet",
		Subsystem: "devid",
		Name:      "requests_total",
		Help: "Requests of machines for the certificate of their device identity (attestation method tpm), by outcome. " +
			"A correctly configured machine does not cause wrong_code, used, not_offered, invalid or shared_tpm.",
	}, []string{"outcome"})}

	if err := registerer.Register(m.requests); err != nil {
		return nil, fmt.Errorf("register device identity metrics: %w", err)
	}

	guestapi.StartAtZero(m.requests, outcomeGivenAgain, outcomeInvalid, outcomeSharedTPM)

	return m, nil
}

func (m *Metrics) countRequest(outcome string) {
	if m != nil {
		m.requests.WithLabelValues(outcome).Inc()
	}
}
