// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// Tail gives what is kept of lines within a limit.
func Tail(limit int, lines ...string) string {
	t := tail{limit: limit}
	for _, line := range lines {
		t.add(line)
	}

	return t.text()
}

// Platforms are the names of the platforms.
func Platforms() []string { return platformNames() }

// Read tells whether a platform sees an event in a line, and the event's text.
func Read(platform, line string) (string, bool) {
	e, ok := platformFor(platform).parseLine(line)

	return e.text, ok
}

// Attested is a machine that has attested, and can ask for its credential again and again.
type Attested struct{ service *Service }

// Attest has a machine attest.
func Attest(ctx context.Context, opts Options, cfg *guest.Config) (*Attested, error) {
	setDefaults(cfg)

	out := &Attested{service: New(opts)}

	return out, out.service.attest(ctx, cfg)
}

// Fetch asks for a credential as a machine with the configuration does, whatever that has.
func (a *Attested) Fetch(ctx context.Context, cfg guest.Config) (guest.Credential, error) {
	setDefaults(&cfg)

	if err := validate(&cfg); err != nil {
		return guest.Credential{}, newFailure(guest.ReasonConfigInvalid, "%w", err)
	}

	if err := a.service.fetchCredential(ctx, &cfg); err != nil {
		return guest.Credential{}, err
	}

	err := a.service.fetchSecrets(ctx, &cfg)

	return cfg.Credential(), err
}

// Redact takes out of a text what the machine knows to be secret.
func (a *Attested) Redact(text string) string { return a.service.redactor.redact(text) }

// Serial is the serial number of the machine's certificate; "" without one.
func (a *Attested) Serial() string {
	svid, err := a.service.identity.svid()
	if err != nil {
		return ""
	}

	return svid.Certificates[0].SerialNumber.String()
}

// Close ends the machine's identity.
func (a *Attested) Close() { a.service.removeIdentity() }

// Reason of a machine's end, and whether an error is one.
func Reason(err error) (string, bool) {
	e, ok := errors.AsType[*endError](err)
	if !ok {
		return "", false
	}

	return e.reason, true
}
