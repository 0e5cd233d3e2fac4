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

// newRedactor takes the values of credentials out of texts.
func newRedactor(credentials map[string]string) log.Redactor {
	secrets := make([]string, 0, 2*len(credentials))

	for name, value := range credentials {
		// Names of keys, algorithms and regions are in every message, and short words.
		if name == "keyName" || name == "keyAlgorithm" || name == "region" || name == "hostedZoneId" {
			continue
		}

		secrets = append(secrets, value, strings.TrimSpace(value))
	}

	return log.NewRedactor(nil, secrets...)
}

// words map what the libraries and services say to what is to be done.
type words struct {
	class  errclass.Class
	reason string
	fix    string
	any    []string
}

// known errors: those of libdns/rfc2136 and miekg/dns by their texts, which have no types;
// Route 53's and Cloudflare's by the codes in them
// (https://docs.aws.amazon.com/Route53/latest/APIReference/CommonErrors.html,
// https://developers.cloudflare.com/fundamentals/api/troubleshooting/).
func knownErrors() []words {
	return []words{
		{
			errclass.Configuration, ReasonZoneRefused,
			"the server has no such zone, or does not let the key update and transfer it",
			[]string{
				errNotAuthoritative.Error(), `"REFUSED"`, `"NOTZONE"`, `"NXDOMAIN"`, "xfr rcode: 5", "xfr rcode: 3",
				"HostedZoneNotFound", "NoSuchHostedZone", "expected 1 zone, got",
			},
		},
		{
			errclass.Configuration, ReasonTSIGRefused,
			"check keyName, key and keyAlgorithm against the server's, what it lets the key do in this zone, and both clocks",
			[]string{
				"bad authentication", "bad signature", "bad time", "bad key", "BADKEY", "BADSIG", "BADTIME",
				`"NOTAUTH"`, "xfr rcode: 9",
			},
		},
		{
			errclass.Configuration, ReasonAccessDenied, "check the credentials and what they allow",
			[]string{
				"AccessDenied", "InvalidClientTokenId", "SignatureDoesNotMatch", "UnrecognizedClient", "ExpiredToken",
				"IncompleteSignature", "HTTP 401", "HTTP 403", "HTTP 400: [{Code:6003",
			},
		},
		{
			errclass.Resource, ReasonRateLimited, "the service asks us to be slower",
			[]string{"Throttling", "PriorRequestNotComplete", "Rate exceeded", "HTTP 429"},
		},
	}
}

// classify makes an error that says what to do, and holds no secret. The call is in words,
// such as "list zone ci.example.com".
func classify(call string, err error, redact log.Redactor) error {
	text := redact.Text(err.Error())

	for _, known := range knownErrors() {
		for _, word := range known.any {
			if strings.Contains(text, word) {
				return errclass.New(known.class, known.reason, "%s: %s: %s", call, text, known.fix)
			}
		}
	}

	var timeout net.Error
	if errors.Is(err, context.DeadlineExceeded) || (errors.As(err, &timeout) && timeout.Timeout()) {
		return errclass.New(errclass.Transient, ReasonUnreachable, "%s: no answer in time", call)
	}

	return errclass.New(errclass.Transient, ReasonUnreachable, "%s: %s", call, text)
}
