// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"errors"
	"net"
	"strings"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// Reasons of conditions and events.
const (
	ReasonRegistered    = "Registered"
	ReasonRecordNotOurs = "RecordNotOurs"
	ReasonNameTaken     = "NameTaken"
	ReasonZoneRefused   = "ZoneRefused"
	ReasonTSIGRefused   = "TSIGRefused"
	ReasonAccessDenied  = "AccessDenied"
	ReasonRateLimited   = "RateLimited"
	ReasonUnreachable   = "DNSUnreachable"
)

// newRedactor returns a redactor that removes the values of credentials from texts.
func newRedactor(credentials map[string]string) log.Redactor {
	secrets := make([]string, 0, 2*len(credentials))

	for name, value := range credentials {
		// These values are not secret. They are short and occur in most messages.
		if name == "keyName" || name == "keyAlgorithm" || name == "region" || name == "hostedZoneId" {
			continue
		}

		secrets = append(secrets, value, strings.TrimSpace(value))
	}

	return log.NewRedactor(nil, secrets...)
}

// errorPattern maps error texts of libraries and services to a class, a reason and a fix.
type errorPattern struct {
	class    errclass.Class
	reason   string
	fix      string
	patterns []string
}

// knownErrors returns the known error patterns. Errors of libdns/rfc2136 and miekg/dns have no types, so
// their patterns are texts. Errors of Route 53 and Cloudflare are identified by their codes
// (https://docs.aws.amazon.com/Route53/latest/APIReference/CommonErrors.html,
// https://developers.cloudflare.com/fundamentals/api/troubleshooting/).
func knownErrors() []errorPattern {
	return []errorPattern{
		{
			errclass.Configuration, ReasonZoneRefused,
			"create the zone at the server, or allow the key to update and transfer it",
			[]string{
				errNotAuthoritative.Error(), `"REFUSED"`, `"NOTZONE"`, `"NXDOMAIN"`, "xfr rcode: 5", "xfr rcode: 3",
				"HostedZoneNotFound", "NoSuchHostedZone", "expected 1 zone, got",
			},
		},
		{
			errclass.Configuration, ReasonTSIGRefused,
			"check keyName, key and keyAlgorithm, the permissions of the key for the zone, and the clocks of both sides",
			[]string{
				"bad authentication", "bad signature", "bad time", "bad key", "BADKEY", "BADSIG", "BADTIME",
				`"NOTAUTH"`, "xfr rcode: 9",
			},
		},
		{
			errclass.Configuration, ReasonAccessDenied, "check the credentials and their permissions",
			[]string{
				"AccessDenied", "InvalidClientTokenId", "SignatureDoesNotMatch", "UnrecognizedClient", "ExpiredToken",
				"IncompleteSignature", "HTTP 401", "HTTP 403", "HTTP 400: [{Code:6003",
			},
		},
		{
			errclass.Resource, ReasonRateLimited, "the service limits the request rate, so the operator retries later",
			[]string{"Throttling", "PriorRequestNotComplete", "Rate exceeded", "HTTP 429"},
		},
	}
}

// classify returns an error with a class and a reason. Its message says what to do and contains no secret.
// call describes the call, such as "list zone ci.example.com".
func classify(call string, err error, redact log.Redactor) error {
	text := redact.Redact(err.Error())

	for _, e := range knownErrors() {
		for _, pattern := range e.patterns {
			if strings.Contains(text, pattern) {
				return errclass.New(e.class, e.reason, "%s: %s: %s", call, text, e.fix)
			}
		}
	}

	var timeout net.Error
	if errors.Is(err, context.DeadlineExceeded) || (errors.As(err, &timeout) && timeout.Timeout()) {
		return errclass.New(errclass.Transient, ReasonUnreachable, "%s: the service did not respond in time", call)
	}

	return errclass.New(errclass.Transient, ReasonUnreachable, "%s: %s", call, text)
}
