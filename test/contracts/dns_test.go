// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"maps"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// changeDNSProvider sets a DNS service with the given settings, and with credentials of the given names.
func changeDNSProvider(kind string, settings anyMap, credentials ...string) change {
	provider := anyMap{"type": kind}
	maps.Copy(provider, settings)

	if len(credentials) > 0 {
		values := anyMap{}
		for _, name := range credentials {
			values[name] = newSecretRef("dns-credentials", name)
		}

		provider["credentials"] = values
	}

	return change{"spec.dns": anyMap{"domain": "ci.example.com", "registerVMs": true, "dnsProvider": provider}}
}

func listDNSRejections() []rejection {
	const (
		at     = "spec.dns.dnsProvider"
		server = "192.0.2.53:53"
	)

	return []rejection{
		{"updates without a server", changeDNSProvider("rfc2136", nil, "keyName", "key"), at, "dnsProvider.server is required with type rfc2136"},
		{
			"server where there is an API", changeDNSProvider("cloudflare", anyMap{"server": server}, "apiToken"),
			at, "dnsProvider.server is required with type rfc2136",
		},
		{"updates unsigned", changeDNSProvider("rfc2136", anyMap{"server": server}), at, "rfc2136 needs the credentials keyName and key"},
		{
			"updates with another's credentials", changeDNSProvider("rfc2136", anyMap{"server": server}, "keyName", "key", "apiToken"),
			at, "rfc2136 needs the credentials keyName and key",
		},
		{"Cloudflare without a token", changeDNSProvider("cloudflare", nil, "zoneToken"), at, "cloudflare needs the credential apiToken"},
		{"Route 53 with half a key", changeDNSProvider("route53", nil, "accessKeyId"), at, "route53 needs the credentials accessKeyId and"},
		{
			"server without a port", changeDNSProvider("rfc2136", anyMap{"server": "192.0.2.53"}, "keyName", "key"),
			at + ".server", "dnsProvider.server must be host:port",
		},
		{
			"zone with a dot at its end", changeDNSProvider("route53", anyMap{"zones": list{"example.com."}}),
			at + ".zones", "dnsProvider.zones must be DNS names",
		},
		{
			"domain outside the zones", changeDNSProvider("route53", anyMap{"zones": list{"xample.com", "0.10.in-addr.arpa"}}),
			"spec.dns", "dns.dnsProvider.zones must contain the zone of dns.domain",
		},
		{
			"interval of tests is zero", change{"spec.network": anyMap{"validation": anyMap{"validateInterval": "0s"}}},
			"spec.network.validation.validateInterval", "validateInterval must be a time above zero",
		},
	}
}

func listRegistrationRejections() []rejection {
	return []rejection{
		{"address that is a name", change{"spec.addresses": list{"vm.example.com"}}, "spec.addresses", "addresses must be IP addresses"},
		{"machine of another kind", change{"spec.claim.kind": "RunnerPool"}, "spec.claim.kind", "Unsupported value"},
		{"no address", change{"spec.addresses": list{}}, "spec.addresses", "should have at least 1 items"},
	}
}

// Each DNS service with valid settings is accepted.
func TestDNSServices(t *testing.T) {
	t.Parallel()

	for name, settings := range map[string]change{
		"RFC 2136": changeDNSProvider("rfc2136", anyMap{
			"server": "ns1.example.com:53", "zones": list{"Example.com", "2.0.192.in-addr.arpa"}, "ttlSeconds": int64(60),
		}, "keyName", "key", "keyAlgorithm"),
		"RFC 2136 over v6":         changeDNSProvider("rfc2136", anyMap{"server": "[2001:db8::53]:53"}, "keyName", "key"),
		"Route 53 with a key":      changeDNSProvider("route53", nil, "accessKeyId", "secretAccessKey", "sessionToken"),
		"Route 53 with a pod role": changeDNSProvider("route53", nil),
		"Cloudflare":               changeDNSProvider("cloudflare", nil, "apiToken", "zoneToken"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if err := newStrictClient().Create(t.Context(), settings.apply(t, baseCluster), client.DryRunAll); err != nil {
				t.Error(err)
			}
		})
	}
}
