// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// Transports put the calls to other systems into the metrics, and keep those that change
// something to the leader.
type Transports struct {
	calls *metrics.Calls
	// leading refuses what changes something once another may lead.
	leading func(http.RoundTripper) http.RoundTripper
}

// NewTransports makes transports whose metrics are in the registry.
func NewTransports(registerer prometheus.Registerer, leading func(http.RoundTripper) http.RoundTripper) (*Transports, error) {
	calls, err := metrics.NewCalls(registerer, nil)
	if err != nil {
		return nil, fmt.Errorf("set up metrics of external calls: %w", err)
	}

	return &Transports{calls: calls, leading: leading}, nil
}

// hypervisor wraps the transport of calls to Proxmox VE.
func (t *Transports) hypervisor(next http.RoundTripper) http.RoundTripper {
	return t.calls.Transport("proxmox", proxmox.Operation, t.leading(next))
}

// platform wraps the transport of calls to a CI platform, by its workload type.
func (t *Transports) platform(kind string, next http.RoundTripper) http.RoundTripper {
	traits := Platforms()[kind].Traits()

	return t.calls.Transport(traits.Slug, traits.Operation, t.leading(next))
}

// registry wraps the transport of calls to image registries.
func (t *Transports) registry(next http.RoundTripper) http.RoundTripper {
	return t.calls.Transport("registry", nil, next)
}

// hosted wraps the transport of calls to hosted clusters.
func (t *Transports) hosted(next http.RoundTripper) http.RoundTripper {
	return t.calls.Transport("hosted-cluster", nil, t.leading(next))
}

// Identity counts a call to the SPIRE server.
func (t *Transports) Identity(operation string, took time.Duration, err error) {
	t.calls.Observe("spire", operation, took, err)
}
