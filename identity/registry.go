// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"time"
)

// Methods of attestation.
const (
	// JoinToken: a token on the machine's cloud-init ISO, worth one attestation.
	JoinToken = "join-token"
	// TPM: a device identity (IEEE 802.1AR) in the machine's TPM.
	TPM = "tpm"
)

// Registry knows machines to the identity provider, for as long as their claims live. It is
// safe for concurrent use. Its errors are of type *Error.
type Registry interface {
	// TrustDomain of all identities, without spiffe://.
	TrustDomain() string

	// Check asks whether the provider is there, lets us in, and is of the trust domain.
	Check(ctx context.Context) error

	// Register makes a machine known, and gives what it attests with. It may be called
	// again, after a crash for example: what an earlier call made for the same machine is
	// found and kept or replaced, and no two join tokens of one machine are worth anything
	// at the same time.
	Register(ctx context.Context, machine Machine) (Attestation, error)

	// Attested says whether the machine has attested.
	Attested(ctx context.Context, id ID) (bool, error)

	// Remove ends the identity: the machine can attest no more, and gets no further SVID.
	// What is gone already is no error.
	Remove(ctx context.Context, id ID) error

	// List gives the identities that this operator has registered.
	List(ctx context.Context) ([]ID, error)

	// Verify gives the identity that a JWT-SVID for the audience proves. An SVID that is
	// not valid, expired, for another audience, or of another trust domain is an error of
	// kind Rejected.
	Verify(ctx context.Context, token, audience string) (ID, error)
}

// Machine is a machine to register.
type Machine struct {
	ID ID
	// Method of attestation.
	Method string
	// TTL is how long a join token may wait for its use; 0 means the default of an hour.
	TTL time.Duration
	// Template, Pool and Workload are kept with the registration, for people.
	Template, Pool, Workload string
}

// Attestation is what a machine attests with.
type Attestation struct {
	// JoinToken is worth one attestation, with method JoinToken. It is a secret.
	JoinToken string
	// ServerAddress is where the machine's agent attests, host:port.
	ServerAddress string
	// TrustBundle in PEM verifies the server.
	TrustBundle string
}
