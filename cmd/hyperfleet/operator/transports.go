// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
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

// trusting is a transport to servers that the system's authorities verify, and those of a
// file, which a setting names.
func trusting(setting, caFile string) (http.RoundTripper, error) {
	transport := httpbound.Plain()

	if caFile == "" {
		return transport, nil
	}

	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read the system's authorities: %w", err)
	}

	if transport.TLSClientConfig, err = httpbound.Trusting(caFile, pool); err != nil {
		return nil, fmt.Errorf("read %s: %w", setting, err)
	}

	return transport, nil
}

// logStore is the transport of calls to the object store of runners' logs.
func (t *Transports) logStore(caFile string) (http.RoundTripper, error) {
	base, err := trusting("runners.logs.store.caFile", caFile)
	if err != nil {
		return nil, err
	}

	return t.calls.Transport("log-store", nil, t.leading(httpbound.Transport(base))), nil
}

// Identity counts a call to the SPIRE server.
func (t *Transports) Identity(operation string, took time.Duration, err error) {
	t.calls.Observe("spire", operation, took, err)
}
