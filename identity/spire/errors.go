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
	errSelector    = errors.New("a selector is TYPE:VALUE, for example unix:uid:0")
	errMethod      = errors.New("SPIRE does not support the attestation method")
	errResultCount = errors.New("the number of results in the response is not the number of entries in the request")
	errAddress     = errors.New("the address is unix:///PATH of the admin socket, or HOST:PORT")
	errSocket      = errors.New("the address is unix:///PATH of the agent's socket, and a server address HOST:PORT requires it")
)

// wrapError gives an error of the server its kind. If err already has a kind, wrapError returns it
// without the action.
func wrapError(action string, err error) error {
	if e, ok := errors.AsType[*identity.Error](err); ok {
		return e
	}

	kind := identity.Unavailable

	switch status.Code(err) { //nolint:exhaustive // all other codes can be transient
	case codes.InvalidArgument, codes.PermissionDenied, codes.Unauthenticated, codes.FailedPrecondition, codes.Unimplemented:
		kind = identity.Rejected
	}

	if st, ok := status.FromError(err); ok && st.Code() != codes.OK {
		err = fmt.Errorf("%s: %s", st.Code(), st.Message()) //nolint:err113 // the text of the server
	}

	if kind == identity.Rejected {
		return &identity.Error{Kind: kind, Err: fmt.Errorf("%s: the SPIRE server rejects the request: %w", action, err)}
	}

	return &identity.Error{Kind: kind, Err: fmt.Errorf("%s: %w", action, err)}
}

func newMismatchError(want, got string) error {
	return &identity.Error{Kind: identity.TrustDomainMismatch, Err: fmt.Errorf(
		"check SPIRE server: its trust domain is %q and not %q: correct identity.spire.trustDomain or the server's address",
		got, want)}
}

func newRejectedError(format string, args ...any) error {
	return &identity.Error{Kind: identity.Rejected, Err: fmt.Errorf(format, args...)}
}

// redactToken replaces the join token in the text of an error. The text can contain it, because it is
// part of the agent's id.
func redactToken(err error, agent *types.SPIFFEID) error {
	token, found := strings.CutPrefix(agent.GetPath(), joinedAgentPath)
	st, ok := status.FromError(err)

	if !found || token == "" || !ok || st.Code() == codes.OK {
		return err
	}

	return status.Error(st.Code(), strings.ReplaceAll(st.Message(), token, "[token]"))
}
