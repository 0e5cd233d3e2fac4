// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/libdns/cloudflare"
	"github.com/libdns/libdns"
	"github.com/libdns/rfc2136"
	"github.com/libdns/route53"
	mdns "github.com/miekg/dns"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// Service is what we need of a DNS service: to see what is there, to add, and to remove by
// exact value. Setting, which replaces what others wrote, is not among it.
type Service interface {
	libdns.RecordGetter
	libdns.RecordAppender
	libdns.RecordDeleter
}

// Settings are a HypervisorCluster's dnsProvider with the values of its credentials.
type Settings struct {
	Provider v1alpha1.DNSProvider
	// Credentials by their name; they are secret.
	Credentials map[string]string
	// Transport of HTTP calls; nil is the default.
	Transport http.RoundTripper
}

// Factory connects to one kind of DNS service. Its errors are of class Configuration and
// hold no secret.
type Factory func(Settings) (Service, error)

// Factories are the DNS services by dnsProvider.type.
func Factories() map[string]Factory {
	return map[string]Factory{"rfc2136": newRFC2136, "route53": newRoute53, "cloudflare": newCloudflare}
}

// algorithms of TSIG that are still to be used (RFC 8945, 6).
func algorithms() []string {
	return []string{mdns.HmacSHA256, mdns.HmacSHA224, mdns.HmacSHA384, mdns.HmacSHA512, mdns.HmacSHA1}
}

// newRFC2136 signs its updates with TSIG (RFC 8945).
func newRFC2136(s Settings) (Service, error) {
	name, key := strings.TrimSpace(s.Credentials["keyName"]), strings.TrimSpace(s.Credentials["key"])
	if _, ok := mdns.IsDomainName(name); name == "" || !ok {
		return nil, errclass.New(errclass.Configuration, "BadCredentials",
			"connect to DNS server %s: the Secret of credential keyName holds no name of a key", s.Provider.Server)
	}

	if raw, err := base64.StdEncoding.DecodeString(key); err != nil || len(raw) == 0 {
		return nil, errclass.New(errclass.Configuration, "BadCredentials",
			"connect to DNS server %s: the Secret of credential key holds no TSIG secret in base64, as tsig-keygen prints it",
			s.Provider.Server)
	}

	algorithm := mdns.HmacSHA256
	if text := strings.TrimSpace(s.Credentials["keyAlgorithm"]); text != "" {
		algorithm = mdns.Fqdn(strings.ToLower(text))
	}

	if !slices.Contains(algorithms(), algorithm) {
		return nil, errclass.New(errclass.Configuration, "BadCredentials",
			"connect to DNS server %s: the Secret of credential keyAlgorithm holds none of %s",
			s.Provider.Server, strings.Join(algorithms(), " "))
	}

	// The library looks the key up by its name in lower case, as the server answers.
	return &updates{&rfc2136.Provider{
		KeyName: strings.ToLower(name), KeyAlg: algorithm, Key: key, Server: s.Provider.Server,
	}}, nil
}

// maxTries of one call to Route 53, by Amazon's own library.
const maxTries = 3

// route53Region signs calls to Route 53, which is one service for all regions.
const route53Region = "us-east-1"

func newRoute53(s Settings) (Service, error) {
	region := s.Credentials["region"]
	if region == "" {
		region = route53Region
	}

	return &route53.Provider{
		Region: region, AccessKeyId: s.Credentials["accessKeyId"], SecretAccessKey: s.Credentials["secretAccessKey"],
		SessionToken: s.Credentials["sessionToken"], HostedZoneID: s.Credentials["hostedZoneId"], MaxRetries: maxTries,
	}, nil
}

// cloudflareTimeout bounds one HTTP call; a listing is one for each hundred records.
const cloudflareTimeout = 15 * time.Second

func newCloudflare(s Settings) (Service, error) {
	token := strings.TrimSpace(s.Credentials["apiToken"])
	if token == "" || strings.ContainsAny(token, "\r\n") {
		return nil, errclass.New(errclass.Configuration, "BadCredentials",
			"connect to Cloudflare: the Secret of credential apiToken holds no token")
	}

	return &dotless{&cloudflare.Provider{
		APIToken: token, ZoneToken: strings.TrimSpace(s.Credentials["zoneToken"]),
		HTTPClient: &http.Client{Transport: s.Transport, Timeout: cloudflareTimeout},
	}}, nil
}

// dotless is libdns/cloudflare for PTR records: Cloudflare finds the value of a record only
// without the dot at its end, which the library takes off of CNAME, NS and MX alone.
type dotless struct{ *cloudflare.Provider }

// AppendRecords adds records.
func (d *dotless) AppendRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return d.Provider.AppendRecords(ctx, zone, withoutDots(records))
}

// DeleteRecords removes records.
func (d *dotless) DeleteRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return d.Provider.DeleteRecords(ctx, zone, withoutDots(records))
}

func withoutDots(records []libdns.Record) []libdns.Record {
	out := slices.Clone(records)

	for i, record := range out {
		if rr := record.RR(); rr.Type == typePTR {
			rr.Data = strings.TrimSuffix(rr.Data, ".")
			out[i] = rr
		}
	}

	return out
}
