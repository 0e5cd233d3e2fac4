// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// Outcomes of a request for a credential, beside those of package guestapi.
const (
	outcomeWrongSVID  = "wrong_svid"
	outcomeWrongProof = "wrong_proof"
)

// Metrics are the numbers of handovers. A nil *Metrics takes nothing.
type Metrics struct {
	requests *prometheus.CounterVec
	// issued takes how long a credential took to make. May be nil.
	issued func(*v1alpha1.MachineClaim, time.Duration)
}

// NewMetrics registers hyperfleet_credential_requests_total{outcome}. The label takes
// the outcomes of package guestapi. issued is told how long each credential took to make; it may be nil.
func NewMetrics(registerer prometheus.Registerer, issued func(*v1alpha1.MachineClaim, time.Duration)) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "hyperfleet",
			Subsystem: "credential",
			Name:      "requests_total",
			Help: "Machines' requests for their credential (bootstrap method callback), by what became of them; " +
				"wrong_code, wrong_svid, wrong_proof, used and not_offered do not happen to machines in good order.",
		}, []string{"outcome"}),
		issued: issued,
	}

	if err := registerer.Register(m.requests); err != nil {
		return nil, fmt.Errorf("register metrics of handovers: %w", err)
	}

	return m, nil
}

func (m *Metrics) request(outcome string) {
	if m != nil {
		m.requests.WithLabelValues(outcome).Inc()
	}
}

func (m *Metrics) took(claim *v1alpha1.MachineClaim, d time.Duration) {
	if m != nil && m.issued != nil {
		m.issued(claim, d)
	}
}
