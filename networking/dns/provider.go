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

// Service is a DNS service that can list, add, and delete records by their exact value. It does not include
// libdns.RecordSetter, which replaces records of other writers.
type Service interface {
	libdns.RecordGetter
	libdns.RecordAppender
	libdns.RecordDeleter
}

// Settings has the dnsProvider of a HypervisorCluster with the values of its credentials.
type Settings struct {
	Provider v1alpha1.DNSProvider
	// Credentials has the secret values by their name.
	Credentials map[string]string
	// Transport is the transport of HTTP calls. Nil means the default transport.
	Transport http.RoundTripper
}

// Factory returns the service for settings of one provider type. Its errors are of class Configuration and
// contain no secret.
type Factory func(Settings) (Service, error)

// Factories returns the factories by dnsProvider.type.
func Factories() map[string]Factory {
	return map[string]Factory{"rfc2136": newRFC2136, "route53": newRoute53, "cloudflare": newCloudflare}
}

// tsigAlgorithms returns the TSIG algorithms that are not deprecated (RFC 8945, 6).
func tsigAlgorithms() []string {
	return []string{mdns.HmacSHA256, mdns.HmacSHA224, mdns.HmacSHA384, mdns.HmacSHA512, mdns.HmacSHA1}
}

// newRFC2136 returns a service that signs its updates with TSIG (RFC 8945).
func newRFC2136(s Settings) (Service, error) {
	name, key := strings.TrimSpace(s.Credentials["keyName"]), strings.TrimSpace(s.Credentials["key"])
	if _, ok := mdns.IsDomainName(name); name == "" || !ok {
		return nil, errclass.New(errclass.Configuration, "BadCredentials",
			"connect to DNS server %s: the Secret of credential keyName has no valid key name", s.Provider.Server)
	}

	if raw, err := base64.StdEncoding.DecodeString(key); err != nil || len(raw) == 0 {
		return nil, errclass.New(errclass.Configuration, "BadCredentials",
			"connect to DNS server %s: the Secret of credential key has no TSIG secret in base64, as tsig-keygen prints it",
			s.Provider.Server)
	}

	algorithm := mdns.HmacSHA256
	if text := strings.TrimSpace(s.Credentials["keyAlgorithm"]); text != "" {
		algorithm = mdns.Fqdn(strings.ToLower(text))
	}

	if !slices.Contains(tsigAlgorithms(), algorithm) {
		return nil, errclass.New(errclass.Configuration, "BadCredentials",
			"connect to DNS server %s: the Secret of credential keyAlgorithm must be one of %s",
			s.Provider.Server, strings.Join(tsigAlgorithms(), " "))
	}

	// The library looks up the key by its name in lower case, because the server responds with this form.
	return &rfc2136Provider{&rfc2136.Provider{
		KeyName: strings.ToLower(name), KeyAlg: algorithm, Key: key, Server: s.Provider.Server,
	}}, nil
}

// maxAttempts is the maximum number of attempts of one call to Route 53. The AWS SDK makes the retries.
const maxAttempts = 3

// route53Region is the default region for signing calls to Route 53, which is one service for all regions.
const route53Region = "us-east-1"

func newRoute53(s Settings) (Service, error) {
	region := s.Credentials["region"]
	if region == "" {
		region = route53Region
	}

	return &route53.Provider{
		Region: region, AccessKeyId: s.Credentials["accessKeyId"], SecretAccessKey: s.Credentials["secretAccessKey"],
		SessionToken: s.Credentials["sessionToken"], HostedZoneID: s.Credentials["hostedZoneId"], MaxRetries: maxAttempts,
	}, nil
}

// cloudflareTimeout is the timeout of one HTTP call. A listing needs one call for each hundred records.
const cloudflareTimeout = 15 * time.Second

func newCloudflare(s Settings) (Service, error) {
	token := strings.TrimSpace(s.Credentials["apiToken"])
	if token == "" || strings.ContainsAny(token, "\r\n") {
		return nil, errclass.New(errclass.Configuration, "BadCredentials",
			"connect to Cloudflare: the Secret of credential apiToken has no valid token")
	}

	return &cloudflareProvider{&cloudflare.Provider{
		APIToken: token, ZoneToken: strings.TrimSpace(s.Credentials["zoneToken"]),
		HTTPClient: &http.Client{Transport: s.Transport, Timeout: cloudflareTimeout},
	}}, nil
}

// cloudflareProvider is libdns/cloudflare with a fix for PTR records. Cloudflare finds the value of a
// record only without the dot at its end, but the library trims the dot only for CNAME, NS and MX records.
type cloudflareProvider struct{ *cloudflare.Provider }

// AppendRecords adds records.
func (d *cloudflareProvider) AppendRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return d.Provider.AppendRecords(ctx, zone, trimPTRDots(records))
}

// DeleteRecords deletes records.
func (d *cloudflareProvider) DeleteRecords(ctx context.Context, zone string, records []libdns.Record) ([]libdns.Record, error) {
	return d.Provider.DeleteRecords(ctx, zone, trimPTRDots(records))
}

func trimPTRDots(records []libdns.Record) []libdns.Record {
	out := slices.Clone(records)

	for i, record := range out {
		if rr := record.RR(); rr.Type == typePTR {
			rr.Data = strings.TrimSuffix(rr.Data, ".")
			out[i] = rr
		}
	}

	return out
}
