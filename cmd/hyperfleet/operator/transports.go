// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"crypto/x509"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// Transports wraps the HTTP transports of calls to other systems. It counts the calls in metrics, and lets
// only the leader send requests that change something.
type Transports struct {
	calls *metrics.CallMetrics
	// guardWrites rejects requests that change something when this process may no longer be the leader.
	guardWrites func(http.RoundTripper) http.RoundTripper
	// checkLease returns an error when this process may no longer be the leader, for calls that are not HTTP. It
	// may be nil.
	checkLease func() error
	// egress limits the servers that users configure. All areas share its connections.
	egress *bounds.EgressPolicy
}

// NewTransports returns transports whose metrics are registered with the given registry.
func NewTransports(registerer prometheus.Registerer, guardWrites func(http.RoundTripper) http.RoundTripper) (*Transports, error) {
	calls, err := metrics.NewCallMetrics(registerer, nil)
	if err != nil {
		return nil, fmt.Errorf("set up metrics of external calls: %w", err)
	}

	return &Transports{calls: calls, guardWrites: guardWrites}, nil
}

// NewEgressPolicy returns the policy for the servers that users configure. It allows the servers and networks
// that the administrator lists in the configuration.
func NewEgressPolicy(cfg config.Runners) (*bounds.EgressPolicy, error) {
	policy, err := bounds.NewEgressPolicy(cfg.PlatformURLs, cfg.PlatformNetworks)
	if err != nil {
		return nil, fmt.Errorf("parse runners.platformURLs and runners.platformNetworks: %w", err)
	}

	return policy, nil
}

// wrapHypervisor wraps the transport of calls to Proxmox VE.
func (t *Transports) wrapHypervisor(next http.RoundTripper) http.RoundTripper {
	return t.calls.WrapTransport("proxmox", proxmox.Operation, t.guardWrites(next))
}

// wrapPlatform wraps the transport of calls to the CI platform of the given workload type.
func (t *Transports) wrapPlatform(kind string, next http.RoundTripper) http.RoundTripper {
	traits := Platforms()[kind].Traits()

	return t.calls.WrapTransport(traits.Slug, traits.OperationName, t.guardWrites(next))
}

// newPlatformTransport returns the innermost transport of calls to CI platforms.
func (t *Transports) newPlatformTransport(caFile string) (http.RoundTripper, error) {
	base := t.egress.NewTransport()
	if err := trustFile("runners.platformCAFile", base, caFile); err != nil {
		return nil, err
	}

	return bounds.LimitBodies(base), nil
}

// newRegistryTransport returns the transport of calls to image registries, which change nothing. The users who create
// bridges name the registries, and the registries name their token services.
func (t *Transports) newRegistryTransport(caFile string) (http.RoundTripper, error) {
	base := t.egress.NewTransport()
	if err := trustFile("bridge.registryCAFile", base, caFile); err != nil {
		return nil, err
	}

	return t.calls.WrapTransport("registry", nil, base), nil
}

// wrapHostedCluster wraps the transport of calls to hosted clusters.
func (t *Transports) wrapHostedCluster(next http.RoundTripper) http.RoundTripper {
	return t.calls.WrapTransport("hosted-cluster", nil, t.guardWrites(next))
}

// trustFile makes a transport trust the CAs of the system and the CAs in caFile, if it is not empty. setting is the name of
// the setting for error messages.
func trustFile(setting string, transport *http.Transport, caFile string) error {
	if caFile == "" {
		return nil
	}

	pool, err := x509.SystemCertPool()
	if err != nil {
		return fmt.Errorf("read the CAs of the system: %w", err)
	}

	if err := bounds.TrustFile(transport, caFile, pool); err != nil {
		return fmt.Errorf("read %s: %w", setting, err)
	}

	return nil
}

// newLogStoreTransport returns the transport of calls to the object store for runner logs.
func (t *Transports) newLogStoreTransport(caFile string) (http.RoundTripper, error) {
	base := bounds.NewTransport()
	if err := trustFile("runners.logs.store.caFile", base, caFile); err != nil {
		return nil, err
	}

	return t.calls.WrapTransport("log-store", nil, t.guardWrites(bounds.LimitBodies(base))), nil
}

// ObserveSPIRE records the duration and the result of a call to the SPIRE server in the metrics.
func (t *Transports) ObserveSPIRE(operation string, took time.Duration, err error) {
	t.calls.Observe("spire", operation, took, err)
}
