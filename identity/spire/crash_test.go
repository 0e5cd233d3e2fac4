// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package spire_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	entryv1 "github.com/spiffe/spire-api-sdk/proto/spire/api/server/entry/v1"
	"github.com/spiffe/spire-api-sdk/proto/spire/api/types"

	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/identity/spire"
	spiretest "github.com/hyperfleet/hyperfleet/test/spire"
)

// newCrashingRegistry returns a registry whose operator ends after the given number of calls. All later
// calls with the returned context fail.
func newCrashingRegistry(t *testing.T, server *spiretest.Server, calls int) (context.Context, *spire.Registry) {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)

	if calls == 0 {
		cancel()
	}

	var made atomic.Int64 // another goroutine observes the end of a stream

	return ctx, newRegistry(t, server, func(o *spire.Options) {
		o.Observe = func(string, time.Duration, error) {
			if made.Add(1) == int64(calls) {
				cancel()
			}
		}
	})
}

// countJoinTokens returns the number of the machine's join tokens that have an alias. Only these give an
// agent the machine's identity.
func countJoinTokens(t *testing.T, server *spiretest.Server, id identity.ID) int {
	t.Helper()

	entries, err := entryv1.NewEntryClient(server.Dial(t)).ListEntries(t.Context(), &entryv1.ListEntriesRequest{
		Filter: &entryv1.ListEntriesRequest_Filter{BySpiffeId: &types.SPIFFEID{TrustDomain: server.TrustDomain, Path: id.Path()}},
	})
	if err != nil {
		t.Fatal(err)
	}

	aliases := 0

	for _, entry := range entries.GetEntries() {
		if strings.HasPrefix(entry.GetParentId().GetPath(), "/spire/agent/join_token/") {
			aliases++
		}
	}

	return aliases
}

// maxCalls is more than the number of calls of any operation.
const maxCalls = 16

// An operator can end after any of its calls. Its successor then finds everything that is left. The
// machine never has two valid tokens, List includes each machine of which anything is left, and nothing
// is left at the end.
func TestOperatorEndsAfterAnyCallSPIRE(t *testing.T) {
	t.Parallel()

	server := spiretest.Start(t)

	for calls := range maxCalls {
		for _, method := range []string{identity.JoinToken, identity.TPM} {
			claim := newMachine(fmt.Sprintf("%s-%d", method, calls))
			claim.Method = method

			// The machine is registered once when it is unknown and once when it is known.
			for range 2 {
				ctx, registry := newCrashingRegistry(t, server, calls)
				_, _ = registry.Register(ctx, claim)

				if tokens := countJoinTokens(t, server, claim.ID); tokens > 1 {
					t.Fatalf("%s after %d calls: %d valid join tokens", method, calls, tokens)
				}
			}

			successor := newRegistry(t, server)
			given := mustRegister(t, successor, claim)

			if tokens := countJoinTokens(t, server, claim.ID); (method == identity.JoinToken) != (tokens == 1 && given.JoinToken != "") {
				t.Errorf("%s after %d calls: %d valid join tokens", method, calls, tokens)
			}

			ctx, registry := newCrashingRegistry(t, server, calls)
			if err := registry.Unregister(ctx, claim.ID); err != nil {
				requireListed(t, server, successor, claim.ID)
			}

			if err := successor.Unregister(t.Context(), claim.ID); err != nil {
				t.Fatal(err)
			}

			if got := server.ListRegistered(t); len(got) != 0 {
				t.Fatalf("%s after %d calls: %q is left", method, calls, got)
			}
		}
	}
}

// requireListed checks that List includes the machine if anything of it is left.
func requireListed(t *testing.T, server *spiretest.Server, registry *spire.Registry, id identity.ID) {
	t.Helper()

	ids, err := registry.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	if got := server.ListRegistered(t); len(got) > 0 && len(ids) != 1 {
		t.Errorf("left of %s: %q, but the list is %v", id.Path(), got, ids)
	}
}
