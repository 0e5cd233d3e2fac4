// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"time"
)

// Methods of attestation.
const (
	// JoinToken attests a machine by a token on its cloud-init ISO. The token is valid for one
	// attestation.
	JoinToken = "join-token"
	// TPM attests a machine by a device identity (IEEE 802.1AR) in its TPM.
	TPM = "tpm"
)

// Registry registers machines with the identity provider while their claims exist. It is safe for
// concurrent use. Its errors are of type *Error.
type Registry interface {
	// TrustDomain returns the trust domain of all identities, without spiffe://.
	TrustDomain() string

	// Check returns an error if the provider is unavailable, if it rejects the operator's
	// credentials, or if it has another trust domain.
	Check(ctx context.Context) error

	// Register registers a machine and returns the data that it attests with. The operator can
	// call it again for the same machine, for example after a crash. Register then finds what the
	// earlier call created, and keeps or replaces it. A machine never has two valid join tokens at
	// the same time.
	Register(ctx context.Context, machine Machine) (Attestation, error)

	// HasAttested reports whether the machine has attested.
	HasAttested(ctx context.Context, id ID) (bool, error)

	// Unregister deletes the identity. The machine can no longer attest and gets no further SVID.
	// If the identity does not exist, Unregister returns nil.
	Unregister(ctx context.Context, id ID) error

	// List returns the identities that this operator has registered.
	List(ctx context.Context) ([]ID, error)

	// Verify returns the identity that a JWT-SVID for the audience proves. The error is of kind
	// Rejected if the SVID is not valid, has expired, is for another audience, or belongs to
	// another trust domain.
	Verify(ctx context.Context, token, audience string) (ID, error)
}

// Machine is a machine to register.
type Machine struct {
	ID ID
	// Method of attestation.
	Method string
	// TTL is the time after which an unused join token expires. 0 means the default of one hour.
	TTL time.Duration
	// Template, Pool and Workload are stored with the registration for people.
	Template, Pool, Workload string
}

// Attestation is the data that a machine attests with.
type Attestation struct {
	// JoinToken is a secret token that is valid for one attestation. It is set only for method
	// JoinToken.
	JoinToken string
	// ServerAddress is the host:port to which the machine's agent connects for attestation.
	ServerAddress string
	// TrustBundle holds the CA certificates in PEM that verify the server.
	TrustBundle string
}
