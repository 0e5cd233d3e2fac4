// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// DockerConfig is the path of Docker's configuration.
const DockerConfig = dockerConfig

// KeepTail returns the tail that a limited log keeps of lines.
func KeepTail(limit int, lines ...string) string {
	t := tail{limit: limit}
	for _, line := range lines {
		t.add(line)
	}

	return t.text()
}

// ListPlatforms returns the names of the platforms.
func ListPlatforms() []string { return platformNames() }

// ParseLine returns whether a line is an event of a platform, and the event's text.
func ParseLine(platform, line string) (string, bool) {
	e, ok := platformFor(platform).parseLine(line)

	return e.text, ok
}

// Attested is an attested machine, which can fetch its credential several times.
type Attested struct{ service *Service }

// Attest attests a machine.
func Attest(ctx context.Context, opts Options, cfg *guest.Config) (*Attested, error) {
	setDefaults(cfg)

	out := &Attested{service: New(opts)}

	return out, out.service.attest(ctx, cfg)
}

// Fetch fetches the credential of a machine with the given configuration.
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

// Redact removes the machine's secrets from a text.
func (a *Attested) Redact(text string) string { return a.service.redactor.redact(text) }

// Serial returns the serial number of the machine's certificate, or "" if it has none.
func (a *Attested) Serial() string {
	svid, err := a.service.identity.svid()
	if err != nil {
		return ""
	}

	return svid.Certificates[0].SerialNumber.String()
}

// Close removes the machine's identity.
func (a *Attested) Close() { a.service.removeIdentity() }

// GetReason returns the reason why a machine ended, and whether the error has one.
func GetReason(err error) (string, bool) {
	e, ok := errors.AsType[*endError](err)
	if !ok {
		return "", false
	}

	return e.reason, true
}
