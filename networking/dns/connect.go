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
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
)

// defaultTTL is the TTL if the API server has not set the default.
const defaultTTL = 300 * time.Second

// SecretReader returns the value for a Secret reference of a HypervisorCluster, if the Secret allows that
// its value is sent to this destination. Its errors have a class and contain no secret.
type SecretReader func(context.Context, v1alpha1.SecretKeySelector, credential.Destination) (string, error)

// Services has the client for each HypervisorCluster's DNS service. It is safe for concurrent use, but its
// fields must not be changed after the first use.
type Services struct {
	// Factories has the factory for each dnsProvider.type. Required.
	Factories map[string]Factory
	// Secret reads credentials. Required.
	Secret SecretReader
	// Transport wraps the HTTP transport of a service, by the type of the service. It may be nil.
	Transport func(kind string, next http.RoundTripper) http.RoundTripper
	// Clock. Required.
	Clock clock.Clock
	// Calls records metrics of the calls. It may be nil.
	Calls *metrics.CallMetrics

	mu      sync.Mutex
	clients map[string]*connection
}

// connection is a client, with a digest of the settings and credentials that it was created with.
type connection struct {
	sum    [sha256.Size]byte
	client *Client
}

// access is a client with the DNS settings of one cluster.
type access struct {
	*Client

	server string
	zones  []string
	ttl    time.Duration
}

// serviceKey identifies the DNS service, because several services can have the same DNS name.
func (a *access) serviceKey() string { return a.kind + " " + a.server }

// open returns the access to the DNS service of a cluster. It reads the credentials in every call, so
// rotated credentials take effect at once. It creates a new client if the credentials or the settings have
// changed.
func (s *Services) open(ctx context.Context, cluster *v1alpha1.HypervisorCluster) (*access, error) {
	settings := cluster.Spec.DNS
	if settings == nil || settings.DNSProvider == nil {
		return nil, errclass.New(errclass.Configuration, "NoDNSProvider",
			"connect to the DNS service of HypervisorCluster %s: it has no dns.dnsProvider any more: "+
				"restore dns.dnsProvider until the records are deleted", cluster.Name)
	}

	provider := *settings.DNSProvider

	factory, ok := s.Factories[provider.Type]
	if !ok {
		return nil, errclass.New(errclass.Configuration, "UnknownDNSProvider",
			"connect to the DNS service of HypervisorCluster %s: dns.dnsProvider.type %q is unknown", cluster.Name, provider.Type)
	}

	credentials, err := s.readCredentials(ctx, provider)
	if err != nil {
		return nil, err
	}

	client, err := s.clientFor(cluster.Name, factory, provider, credentials)
	if err != nil {
		return nil, err
	}

	out := &access{
		Client: client, server: provider.Server, zones: allowedZones(settings),
		ttl: time.Duration(provider.TTLSeconds) * time.Second,
	}
	if out.ttl == 0 {
		out.ttl = defaultTTL
	}

	return out, nil
}

// retainOnly removes the clients of all clusters except for these.
func (s *Services) retainOnly(clusters map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	maps.DeleteFunc(s.clients, func(cluster string, _ *connection) bool { return !clusters[cluster] })
}

// allowedZones returns the zones to which the operator may write. The default is the domain.
func allowedZones(settings *v1alpha1.HypervisorDNS) []string {
	zones := settings.DNSProvider.Zones
	if len(zones) == 0 && settings.Domain != "" {
		zones = []string{settings.Domain}
	}

	out := make([]string, 0, len(zones))
	for _, zone := range zones {
		out = append(out, canonicalName(zone))
	}

	return out
}

func (s *Services) readCredentials(ctx context.Context, provider v1alpha1.DNSProvider) (map[string]string, error) {
	values := map[string]string{}
	// An administrator configured both the credentials and the server.
	to := credential.NewDestination(serverAddress(provider))

	for _, name := range slices.Sorted(maps.Keys(provider.Credentials)) {
		value, err := s.Secret(ctx, provider.Credentials[name].SecretKeyRef, to)
		if err != nil {
			return nil, fmt.Errorf("read credential %s: %w", name, err)
		}

		values[name] = value
	}

	return values, nil
}

// serverAddress returns the address of a service's API.
func serverAddress(provider v1alpha1.DNSProvider) string {
	switch provider.Type {
	case "route53":
		return "route53.amazonaws.com"
	case "cloudflare":
		return "api.cloudflare.com"
	default:
		return provider.Server
	}
}

// clientFor returns the client of a cluster. It creates a new client if the settings or the credentials
// have changed.
func (s *Services) clientFor(
	cluster string, factory Factory, provider v1alpha1.DNSProvider, credentials map[string]string,
) (*Client, error) {
	raw, err := json.Marshal([]any{provider.Type, provider.Server, credentials})
	if err != nil {
		return nil, fmt.Errorf("encode settings of DNS service: %w", err)
	}

	sum := sha256.Sum256(raw)

	s.mu.Lock()
	defer s.mu.Unlock()

	if current := s.clients[cluster]; current != nil && current.sum == sum {
		return current.client, nil
	}

	settings := Settings{Provider: provider, Credentials: credentials, Transport: bounds.SharedTransport()}
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
