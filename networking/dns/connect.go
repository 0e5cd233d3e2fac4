// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// defaultTTL is for providers that are not defaulted by an API server.
const defaultTTL = 300 * time.Second

// ReadSecret gives the value that a reference of a HypervisorCluster points to, if its Secret
// may be sent there. Its errors have a class and hold no secret.
type ReadSecret func(context.Context, v1alpha1.SecretKeySelector, credential.Sent) (string, error)

// Services holds the connection to each HypervisorCluster's DNS service. The fields are
// not changed once it is in use; it is safe for concurrent use.
type Services struct {
	// Factories by dnsProvider.type. Required.
	Factories map[string]Factory
	// Secret reads credentials. Required.
	Secret ReadSecret
	// Transport wraps that of services with an HTTP API, by their type; may be nil.
	Transport func(kind string, next http.RoundTripper) http.RoundTripper
	// Clock. Required.
	Clock clock.Clock
	// Calls notes the calls; may be nil.
	Calls *metrics.Calls

	mu      sync.Mutex
	clients map[string]*connection
}

// connection is a client and what it was made of.
type connection struct {
	sum    [sha256.Size]byte
	client *Client
}

// access is how the records of one cluster's machines are written.
type access struct {
	*Client

	server string
	zones  []string
	ttl    time.Duration
}

// place tells one DNS service from another: the same name may be at several.
func (a *access) place() string { return a.kind + " " + a.server }

// open connects to the DNS service of a cluster. Credentials are read every time, so that
// rotated ones are used at once; the connection is made anew when they or the settings
// have changed.
func (s *Services) open(ctx context.Context, cluster *v1alpha1.HypervisorCluster) (*access, error) {
	settings := cluster.Spec.DNS
	if settings == nil || settings.DNSProvider == nil {
		return nil, errclass.New(errclass.Configuration, "NoDNSProvider",
			"connect to the DNS service of HypervisorCluster %s: it has no dns.dnsProvider any more: "+
				"put it back until its records are gone", cluster.Name)
	}

	provider := *settings.DNSProvider

	factory, ok := s.Factories[provider.Type]
	if !ok {
		return nil, errclass.New(errclass.Configuration, "UnknownDNSProvider",
			"connect to the DNS service of HypervisorCluster %s: there is no type %q", cluster.Name, provider.Type)
	}

	credentials, err := s.credentials(ctx, provider)
	if err != nil {
		return nil, err
	}

	client, err := s.client(cluster.Name, factory, provider, credentials)
	if err != nil {
		return nil, err
	}

	out := &access{
		Client: client, server: provider.Server, zones: zonesOf(settings),
		ttl: time.Duration(provider.TTLSeconds) * time.Second,
	}
	if out.ttl == 0 {
		out.ttl = defaultTTL
	}

	return out, nil
}

// keep forgets the connections of all clusters but these.
func (s *Services) keep(clusters map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	maps.DeleteFunc(s.clients, func(cluster string, _ *connection) bool { return !clusters[cluster] })
}

// zonesOf are the zones that may be written to.
func zonesOf(settings *v1alpha1.HypervisorDNS) []string {
	zones := settings.DNSProvider.Zones
	if len(zones) == 0 && settings.Domain != "" {
		zones = []string{settings.Domain}
	}

	out := make([]string, 0, len(zones))
	for _, zone := range zones {
		out = append(out, canonical(zone))
	}

	return out
}

func (s *Services) credentials(ctx context.Context, provider v1alpha1.DNSProvider) (map[string]string, error) {
	values := map[string]string{}
	// An administrator wrote both the credentials and the server.
	to := credential.To(serverOf(provider))

	for _, name := range slices.Sorted(maps.Keys(provider.Credentials)) {
		value, err := s.Secret(ctx, provider.Credentials[name].SecretKeyRef, to)
		if err != nil {
			return nil, fmt.Errorf("read credential %s: %w", name, err)
		}

		values[name] = value
	}

	return values, nil
}

// serverOf is the server that a service's API is at.
func serverOf(provider v1alpha1.DNSProvider) string {
	switch provider.Type {
	case "route53":
		return "route53.amazonaws.com"
	case "cloudflare":
		return "api.cloudflare.com"
	default:
		return provider.Server
	}
}

// client gives the cluster's client, made anew if what it is made of has changed.
func (s *Services) client(
	cluster string, factory Factory, provider v1alpha1.DNSProvider, credentials map[string]string,
) (*Client, error) {
	raw, err := json.Marshal([]any{provider.Type, provider.Server, credentials})
	if err != nil {
		return nil, fmt.Errorf("compare settings of DNS service: %w", err)
	}

	sum := sha256.Sum256(raw)

	s.mu.Lock()
	defer s.mu.Unlock()

	if known := s.clients[cluster]; known != nil && known.sum == sum {
		return known.client, nil
	}

	settings := Settings{Provider: provider, Credentials: credentials, Transport: httpbound.Shared()}
	if s.Transport != nil {
		settings.Transport = s.Transport(provider.Type, settings.Transport)
	}

	service, err := factory(settings)
	if err != nil {
		return nil, err
	}

	if s.clients == nil {
		s.clients = map[string]*connection{}
	}

	client := newClient(provider.Type, service, newRedactor(credentials), s.Clock, s.Calls)
	s.clients[cluster] = &connection{sum: sum, client: client}

	return client, nil
}
