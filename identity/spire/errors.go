// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spiffe/spire-api-sdk/proto/spire/api/types"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hyperfleet/hyperfleet/identity"
)

var (
	errSelector = errors.New("it is TYPE:VALUE, such as unix:uid:0")
	errMethod   = errors.New("the method of attestation is not one that SPIRE knows machines by")
	errAnswer   = errors.New("the answer speaks of another number of entries")
	errAddress  = errors.New("it is unix:///PATH of the admin socket, or HOST:PORT")
	errSocket   = errors.New("it is unix:///PATH of the agent's socket, and needed with an address HOST:PORT")
)

// failed gives an error of the server its kind.
func failed(what string, err error) error {
	if known, ok := errors.AsType[*identity.Error](err); ok {
		return known
	}

	kind := identity.Unavailable

	switch status.Code(err) { //nolint:exhaustive // all others may pass by themselves
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.Unimplemented:
		kind = identity.Rejected
	}

	if said, ok := status.FromError(err); ok && said.Code() != codes.OK {
		err = fmt.Errorf("%s: %s", said.Code(), said.Message()) //nolint:err113 // the server's own words
	}

	if kind == identity.Rejected {
		return &identity.Error{Kind: kind, Err: fmt.Errorf("%s: the SPIRE server refuses: %w", what, err)}
	}

	return &identity.Error{Kind: kind, Err: fmt.Errorf("%s: %w", what, err)}
}

func mismatch(want, got string) error {
	return &identity.Error{Kind: identity.TrustDomainMismatch, Err: fmt.Errorf(
		"check SPIRE server: its trust domain is %q and not %q: correct identity.spire.trustDomain, or the server's address",
		got, want)}
}

func rejected(format string, args ...any) error {
	return &identity.Error{Kind: identity.Rejected, Err: fmt.Errorf(format, args...)}
}

// withoutToken takes the join token out of an error: it is part of its agent's id.
func withoutToken(err error, agent *types.SPIFFEID) error {
	token, found := strings.CutPrefix(agent.GetPath(), agentPath)
	said, ok := status.FromError(err)

	if !found || token == "" || !ok || said.Code() == codes.OK {
		return err
	}

	return status.Error(said.Code(), strings.ReplaceAll(said.Message(), token, "[token]"))
}
