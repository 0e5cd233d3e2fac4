// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/guestapi"
)

// Outcomes of a request for a credential, in addition to those of package guestapi.
const (
	outcomeWrongSVID  = "wrong_svid"
	outcomeWrongProof = "wrong_proof"
)

// Metrics counts requests for credentials. A nil *Metrics counts nothing.
type Metrics struct {
	requests *prometheus.CounterVec
	// onIssued receives how long the CI platform took to issue a credential. It may be nil.
	onIssued func(*v1alpha1.MachineClaim, time.Duration)
}

// NewMetrics registers hyperfleet_credential_requests_total{outcome}. The label values are the outcomes of
// this package and of package guestapi. NewMetrics stores onIssued, which receives how long each credential
// took to issue; it may be nil.
func NewMetrics(registerer prometheus.Registerer, onIssued func(*v1alpha1.MachineClaim, time.Duration)) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "hyperfleet",
			Subsystem: "credential",
			Name:      "requests_total",
			Help: "Requests of machines for their credential (bootstrap method callback), by outcome. A correctly configured " +
				"machine does not cause wrong_code, wrong_svid, wrong_proof, used or not_offered.",
		}, []string{"outcome"}),
		onIssued: onIssued,
	}

	if err := registerer.Register(m.requests); err != nil {
		return nil, fmt.Errorf("register handover metrics: %w", err)
	}

	guestapi.StartAtZero(m.requests, outcomeWrongSVID, outcomeWrongProof)

	return m, nil
}

func (m *Metrics) countRequest(outcome string) {
	if m != nil {
		m.requests.WithLabelValues(outcome).Inc()
	}
}

func (m *Metrics) observeIssue(claim *v1alpha1.MachineClaim, d time.Duration) {
	if m != nil && m.onIssued != nil {
		m.onIssued(claim, d)
	}
}
